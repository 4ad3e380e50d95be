"""Brings the local cluster up: idempotent, and a crash before is cleaned away first."""

import os
import subprocess
import sys
import time

from images import builder, debian
from images.build import build as build_image
from tests.cluster import accelerators, build, cleanup, dns, network, node
from tests.cluster.control_plane import API_SERVICE_ADDRESS, ControlPlane, ports
from tests.cluster.join import join, wait_until_ready
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
    "nsenter": "util-linux",
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
        address=node.FIRST.place.address,
        ports=ports("127.0.0.1"),
        kubelets=True,
        dies_with_parent=False,
    )
    plane.prepare()
    plane.remember()
    network.prepare_machine(node.FIRST.place)
    first = node.Node(node.FIRST, folder.first, plane)
    first.prepare()
    containerd = first.containerd()
    containerd.start()
    daemons = [*plane.start(scheduler=True), containerd]
    daemons += join(first, [image.name for image in system_images(programs)], daemons)
    _install_dns(folder, programs)
    wait_until_ready(first, daemons)
    accelerators.advertise(programs.kubectl, folder.kubeconfig, node.FIRST.name)
    wait_until("cluster DNS to answer", dns_answers, PATIENCE, daemons)


def _install_dns(folder: ClusterFolder, programs: Programs) -> None:
    manifest = MANIFESTS / "coredns.yaml"
    command = [str(programs.kubectl), f"--kubeconfig={folder.kubeconfig}", "apply", f"--filename={manifest}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"CoreDNS could not be installed: {done.stderr.strip()}")
