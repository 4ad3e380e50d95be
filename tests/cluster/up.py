"""Brings the local cluster up: idempotent, and a crash before is cleaned away first."""

import json
import os
import subprocess
import sys
import time

from images import builder, debian
from images.build import build as build_image
from tests.cluster import accelerators, build, cleanup, dns, kubeconfig, node
from tests.cluster.control_plane import API_SERVICE_ADDRESS, ControlPlane, ports
from tests.cluster.load_image import Loader
from tests.cluster.paths import MANIFESTS, ClusterFolder, Programs
from tests.cluster.processes import PATIENCE, alive, read_record, wait_until
from tests.cluster.system_images import system_images

# Program or file -> Debian package.
NEEDED = {
    "containerd": "containerd",
    "ctr": "containerd",
    "runc": "runc",
    "iptables": "iptables",
    "conntrack": "conntrack",
    "ip": "iproute2",
    "modprobe": "kmod",
    "mount": "mount",
    "unshare": "util-linux",
    "openssl": "openssl",
    "buildah": "buildah",
    "/usr/lib/cni/bridge": "containernetworking-plugins",
}


def up(folder: ClusterFolder) -> None:
    """Returns once the node is Ready and cluster DNS answers.

    Raises:
        RuntimeError: not root, another cluster is here, something is missing, or a program ended (with its log).
        TimeoutError: a program did not become ready.
    """
    if os.geteuid() != 0:
        raise RuntimeError("the local cluster needs root: containers, interfaces and iptables are the kernel's")
    debian.ensure(NEEDED)
    programs = build.programs()
    if running(folder):
        return
    cleanup.refuse_another_cluster(folder)
    cleanup.stop_daemons(folder)
    cleanup.remove_traces(folder)
    begin = time.monotonic()
    for image in system_images(programs):
        build_image(image, builder.Buildah())
    _start(folder, programs)
    print(f"cluster: ready in {time.monotonic() - begin:.0f} s", flush=True, file=sys.stderr)


def running(folder: ClusterFolder) -> bool:
    """Whether all its programs run and it answers end to end: node, kube-proxy and DNS."""
    records = [read_record(folder.pids / name) for name in cleanup.STOP_ORDER]
    return all(record is not None and alive(record) for record in records) and dns_answers()


def dns_answers() -> bool:
    return dns.address_of("kubernetes.default.svc.cluster.local", node.DNS_ADDRESS) == API_SERVICE_ADDRESS


def _start(folder: ClusterFolder, programs: Programs) -> None:
    plane = ControlPlane(
        folder=folder.root,
        programs=programs,
        address=node.ADDRESS,
        ports=ports("127.0.0.1"),
        node=node.NAME,
        dies_with_parent=False,
    )
    local = node.Node(folder, plane)
    plane.prepare()
    local.prepare()
    containerd = local.containerd()
    containerd.start()
    daemons = [*plane.start(scheduler=True), containerd]
    wait_until("containerd to answer", lambda: _containerd_answers(folder), PATIENCE, [containerd])
    for image in system_images(programs):
        Loader(folder).load(image.name)
    kubeconfig.write_kubeconfig(folder.root / "kubelet.conf", plane.url, folder.pki, "kubelet")
    for daemon in (local.kubelet(), local.proxy()):
        daemon.start()
        daemons.append(daemon)
    _install_dns(folder, programs)
    wait_until("the node to be Ready", lambda: _node_is_ready(plane), PATIENCE, daemons)
    accelerators.advertise(programs.kubectl, folder.kubeconfig, node.NAME)
    wait_until("cluster DNS to answer", dns_answers, PATIENCE, daemons)


def _containerd_answers(folder: ClusterFolder) -> bool:
    command = ["ctr", "--address", str(folder.containerd_socket), "version"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _node_is_ready(plane: ControlPlane) -> bool:
    body = plane.get(f"/api/v1/nodes/{node.NAME}")
    if body is None:
        return False
    conditions = json.loads(body)["status"].get("conditions", [])
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)


def _install_dns(folder: ClusterFolder, programs: Programs) -> None:
    manifest = MANIFESTS / "coredns.yaml"
    command = [str(programs.kubectl), f"--kubeconfig={folder.kubeconfig}", "apply", f"--filename={manifest}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"CoreDNS could not be installed: {done.stderr.strip()}")
