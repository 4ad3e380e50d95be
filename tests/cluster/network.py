"""How the nodes are connected: the first lies in this machine's own network, the second in a namespace of its own.

    this machine             kvik0 172.31.99.1 ======= eth0 172.31.99.2      the namespace
    pods of the first node   kvik-pods 10.244.0.0/24   kvik-pods 10.244.1.0/24   pods of the second node

A namespace has interfaces, routes and iptables of its own, so that the second node needs its own kube-proxy, can be cut
off as a machine without power is, and takes all of them with it when it goes.
"""

import subprocess
from dataclasses import dataclass
from pathlib import Path

INTERFACE = "kvik0"  # carries the first node's address; a bridge, because a kernel may lack the `dummy` link type
POD_BRIDGE = "kvik-pods"
WIRE, WIRE_END = "kvik-wire", "eth0"
NAMESPACES = Path("/run/netns")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a node is on the network. `namespace` is None for this machine's own."""

    address: str
    pod_range: str
    namespace: str | None

    def inside(self, *command: str) -> tuple[str, ...]:
        """A command line that runs there. Only the network differs: mounts stay those of this machine."""
        return command if self.namespace is None else ("nsenter", f"--net={NAMESPACES / self.namespace}", *command)


def prepare_machine(place: Place) -> None:
    """The first node's address, and forwarding between pods."""
    if not _exists(INTERFACE):
        _run("ip", "link", "add", INTERFACE, "type", "bridge")
    _run("ip", "address", "replace", f"{place.address}/32", "dev", INTERFACE)
    _run("ip", "link", "set", INTERFACE, "up")
    _enable_forwarding(place)


def connect(place: Place, machine: Place) -> None:
    """Makes the namespace of `place` and a way between its pods and those of `machine`, which is prepared."""
    assert place.namespace is not None
    _run("ip", "netns", "add", place.namespace)
    _run("ip", "link", "add", WIRE, "type", "veth", "peer", "name", WIRE_END, "netns", place.namespace)
    _run("ip", "link", "set", WIRE, "master", INTERFACE, "up")
    for arguments in (
        ("link", "set", "lo", "up"),
        ("address", "add", f"{place.address}/32", "dev", WIRE_END),
        ("link", "set", WIRE_END, "up"),
        ("route", "add", machine.address, "dev", WIRE_END),
        ("route", "add", "default", "via", machine.address, "dev", WIRE_END),
    ):
        _run(*place.inside("ip", *arguments))
    _run("ip", "route", "add", place.address, "dev", INTERFACE)
    _run("ip", "route", "add", place.pod_range, "via", place.address, "dev", INTERFACE)
    _enable_forwarding(place)


def cut() -> None:
    """Pulls the wire between the nodes: connections hang, as to a machine without power."""
    _run("ip", "link", "set", WIRE, "down")


def disconnect(place: Place) -> None:
    """Takes away what `connect` made, as far as it is there. The processes inside must have ended."""
    if _exists(WIRE):
        _run("ip", "link", "delete", WIRE)
    if place.namespace is not None and (NAMESPACES / place.namespace).exists():
        _run("ip", "netns", "delete", place.namespace)
    for destination in (place.address, place.pod_range):
        route = (destination, "dev", INTERFACE)  # of another interface, it is somebody else's
        subprocess.run(["ip", "route", "delete", *route], capture_output=True, check=False)


def remove(place: Place) -> None:
    """Everything, the connection to `place` and this machine's own interfaces."""
    disconnect(place)
    for interface in (POD_BRIDGE, INTERFACE):
        subprocess.run(["ip", "link", "delete", interface], capture_output=True, check=False)


def traces(place: Place) -> list[str]:
    """What is there of it now, in words."""
    interfaces = [f"interface {name}" for name in (POD_BRIDGE, INTERFACE, WIRE) if _exists(name)]
    there = place.namespace is not None and (NAMESPACES / place.namespace).exists()
    return interfaces + ([f"network namespace {place.namespace}"] if there else [])


def _exists(interface: str) -> bool:
    return Path("/sys/class/net", interface).exists()


def _enable_forwarding(place: Place) -> None:
    """Pods reach Services on their own bridge only if bridged packets pass iptables."""
    subprocess.run(["modprobe", "br_netfilter"], capture_output=True, check=False)  # often built in, then it fails
    for setting in ("net/ipv4/ip_forward", "net/bridge/bridge-nf-call-iptables"):
        path = Path("/proc/sys") / setting
        if path.exists():
            _run(*place.inside("sh", "-c", f'[ "$(cat {path})" = 1 ] || echo 1 >{path}'))


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
