"""The second node, which comes and goes while the cluster runs: for drains and the loss of a node."""

import subprocess
import sys
import time
from collections.abc import Iterator

from images.catalog import LOCAL_PREFIX
from tests.cluster import cleanup, network
from tests.cluster.control_plane import ControlPlane, remembered_ports
from tests.cluster.join import join, wait_until_ready
from tests.cluster.load_image import Loader, has_image
from tests.cluster.node import FIRST, SECOND, Node
from tests.cluster.paths import ClusterFolder, Programs
from tests.cluster.processes import alive, end_recorded, read_record

NAME = SECOND.name


def running(folder: ClusterFolder) -> bool:
    """Whether all its programs run."""
    records = [read_record(folder.pids / SECOND.record(program)) for program in cleanup.NODE_STOP_ORDER]
    return all(record is not None and alive(record) for record in records)


def add(folder: ClusterFolder, programs: Programs) -> None:
    """Returns once the node is Ready, with the images that the first one has. Idempotent; the cluster runs.

    Raises:
        RuntimeError: a program ended (with its log), or the network could not be made.
        TimeoutError: a program did not become ready.
    """
    if running(folder):
        return
    remove(folder, programs)
    begin = time.monotonic()
    folder.second.root.mkdir(parents=True)
    network.connect(SECOND.place, machine=FIRST.place)
    node = Node(SECOND, folder.second, _plane(folder, programs))
    node.prepare()
    containerd = node.containerd()
    containerd.start()
    daemons = [containerd, *join(node, _images(folder), [containerd])]
    wait_until_ready(node, daemons)
    print(f"cluster: node {NAME} is ready in {time.monotonic() - begin:.0f} s", flush=True, file=sys.stderr)


def lose(folder: ClusterFolder) -> None:
    """What the cluster sees of a machine that loses its power: no connection, and a kubelet without a last word."""
    network.cut()
    end_recorded(folder.pids / SECOND.record("kubelet"), patience=0.0)


def remove(folder: ClusterFolder, programs: Programs) -> None:
    """Without a drain, and with its pods; nothing to do where there is none."""
    if not folder.second.root.exists():
        return
    cleanup.stop_second_node(folder)
    _kubectl(folder, programs, "delete", "node", NAME, "--ignore-not-found")
    on_it = ("--all-namespaces", f"--field-selector=spec.nodeName={NAME}")
    _kubectl(folder, programs, "delete", "pods", *on_it, "--force", "--grace-period=0")
    cleanup.remove_second_node(folder)


def _plane(folder: ClusterFolder, programs: Programs) -> ControlPlane:
    """The one that runs."""
    return ControlPlane(
        folder=folder.root,
        programs=programs,
        address=FIRST.place.address,
        ports=remembered_ports(folder.root),
        kubelets=True,
        dies_with_parent=False,
    )


def _images(folder: ClusterFolder) -> Iterator[str]:
    """Those of the first node that can be had once more: buildah may have dropped an old one."""
    return (name for name in Loader(folder.first).names() if name.startswith(LOCAL_PREFIX) and has_image(name))


def _kubectl(folder: ClusterFolder, programs: Programs, *arguments: str) -> None:
    command = [str(programs.kubectl), f"--kubeconfig={folder.kubeconfig}", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"kubectl {' '.join(arguments)}: {done.stderr.strip()}")
