"""Makes a node part of a control plane that runs: its images, its programs, and that it is Ready."""

import json
import subprocess
from collections.abc import Iterable, Sequence

from tests.cluster.control_plane import ControlPlane
from tests.cluster.load_image import Loader
from tests.cluster.node import Node
from tests.cluster.paths import NodeFolder
from tests.cluster.processes import PATIENCE, Daemon, wait_until


def join(node: Node, images: Iterable[str], others: Sequence[Daemon]) -> list[Daemon]:
    """`node` is prepared, and its containerd starts. Returns its kubelet and kube-proxy, started.

    Raises:
        LookupError: buildah has no image of one of these names.
        RuntimeError: one of `others` ended meanwhile.
        TimeoutError: containerd did not answer.
    """
    wait_until("containerd to answer", lambda: _containerd_answers(node.folder), PATIENCE, others)
    for image in images:
        Loader(node.folder).load(image)
    daemons = [node.kubelet(), node.proxy()]
    for daemon in daemons:
        daemon.start()
    return daemons


def wait_until_ready(node: Node, daemons: Sequence[Daemon]) -> None:
    name = node.member.name
    wait_until(f"node {name} to be Ready", lambda: _is_ready(node.plane, name), PATIENCE, daemons)


def _containerd_answers(folder: NodeFolder) -> bool:
    command = ["ctr", "--address", str(folder.containerd_socket), "version"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _is_ready(plane: ControlPlane, name: str) -> bool:
    body = plane.get(f"/api/v1/nodes/{name}")
    if body is None:
        return False
    conditions = json.loads(body)["status"].get("conditions", [])
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)
