"""kube-router on the first node, as nothing but the enforcer of NetworkPolicies: the CNI bridge ignores them.

It is started for the tests that are about policies, and leaves nothing behind: a policy that is enforced would
otherwise decide about every other test.
"""

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from images import debian
from tests.cluster import build, iptables
from tests.cluster.control_plane import SERVICE_NETWORK
from tests.cluster.node import FIRST
from tests.cluster.paths import ClusterFolder
from tests.cluster.processes import PATIENCE, Daemon, end_recorded, wait_until

NAME = "kube-router"
NEEDED = {"ipset": "ipset"}
_CHAIN = re.compile(r"KUBE-ROUTER-[A-Z]+|KUBE-POD-FW-[A-Z0-9]{16}|KUBE-NWPLCY-[A-Z0-9]+")
_SET = re.compile(r"(inet6:)?KUBE-(SRC|DST)-[A-Z0-9]{16}|(inet6:)?kube-router-\S+")


@contextmanager
def enforced(folder: ClusterFolder) -> Iterator[None]:
    """NetworkPolicies hold on the first node of the cluster, which runs. Builds kube-router first (minutes).

    Raises:
        RuntimeError: it ended (with its log).
    """
    debian.ensure(NEEDED)
    daemon = _daemon(folder)
    stop(folder)
    daemon.start()
    try:
        wait_until("kube-router's chains", _has_chains, PATIENCE, [daemon])
        yield
    finally:
        stop(folder)


def stop(folder: ClusterFolder) -> None:
    """Ends it and takes its chains and sets away, as far as they are there."""
    end_recorded(folder.pids / NAME, patience=2.0)
    iptables.remove(iptables.named(_CHAIN))
    for name in _sets():
        subprocess.run(["ipset", "destroy", name], capture_output=True, check=False)


def traces() -> list[str]:
    """What is left of it, in words."""
    chains = [f"chains of {NAME} in {command}" for command in iptables.with_traces(iptables.named(_CHAIN))]
    return chains + [f"ipset {name}" for name in _sets()]


def _daemon(folder: ClusterFolder) -> Daemon:
    flags = (
        f"--kubeconfig={folder.kubeconfig}",
        "--run-firewall=true",
        "--run-router=false",
        "--run-service-proxy=false",
        "--run-loadbalancer=false",
        f"--hostname-override={FIRST.name}",
        f"--service-cluster-ip-range={SERVICE_NETWORK}",
        "--health-port=0",
        "--iptables-sync-period=10s",
    )
    return Daemon(
        name=NAME,
        command=(str(build.kube_router()), *flags),
        record=folder.pids / NAME,
        log=folder.logs / f"{NAME}.log",
        environment={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": str(folder.root)},
    )


def _has_chains() -> bool:
    return "iptables" in iptables.with_traces(iptables.named(_CHAIN))


def _sets() -> list[str]:
    """Empty too where ipset is not installed."""
    try:
        listed = subprocess.run(["ipset", "list", "-name"], capture_output=True, text=True, check=False).stdout
    except FileNotFoundError:
        return []
    return [name for name in listed.split() if _SET.fullmatch(name)]
