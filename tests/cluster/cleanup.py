"""Takes away everything that the cluster put on this machine, whether it was stopped or crashed."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path

from tests.cluster import iptables, node
from tests.cluster.paths import ClusterFolder
from tests.cluster.processes import alive, end_recorded, every_process, read_record

# Consumers before what they consume.
STOP_ORDER = (
    "kubelet",
    "kube-proxy",
    "kube-scheduler",
    "kube-controller-manager",
    "containerd",
    "kube-apiserver",
    "etcd",
)
CGROUPS = Path("/sys/fs/cgroup")


KUBELETS = frozenset({"kubelet", "kubelite", "k3s", "k3s-server", "k3s-agent", "rke2", "k0s"})
"""Programs that are a kubelet, or have one inside."""


def refuse_another_cluster(folder: ClusterFolder) -> None:
    """Two kubelets would share cgroups and iptables chains, and taking away ours would take away the other's.

    Raises:
        RuntimeError: this machine runs a kubelet that is not the cluster's, or has the iptables chains of one.
    """
    recorded = read_record(folder.pids / "kubelet")
    own = None if recorded is None else recorded.pid
    if (other := another_kubelet(every_process(), own)) is not None:
        raise RuntimeError(f"process {other[0]} is another cluster's kubelet on this machine: {other[1]}")
    if not folder.root.exists() and (chains := iptables.foreign_chains(node.CNI_NETWORK)):
        raise RuntimeError(
            f"this machine has the iptables chains of another cluster ({', '.join(chains[:3])}, ...), which ours would"
            " replace; if that cluster is gone, remove its chains or restart the machine"
        )


def another_kubelet(processes: Iterable[tuple[int, list[str]]], own: int | None) -> tuple[int, str] | None:
    """(pid, program) of the first kubelet among (pid, command line) that is not the process `own`. Pure."""
    for pid, command in processes:
        # k3s writes its whole command line into the first argument.
        names = {Path(command[0]).name, Path(command[0].split(" ")[0]).name} if command and command[0] else set()
        if pid != own and names & KUBELETS:
            return pid, command[0]
    return None


def stop_daemons(folder: ClusterFolder) -> None:
    """Nothing of it is kept, so nobody gets long to finish."""
    for name in STOP_ORDER:
        end_recorded(folder.pids / name, patience=2.0)


def kill_containers(folder: ClusterFolder) -> None:
    """Ends every container and its shim. A shim outlives containerd."""
    shims = _shims(folder)
    parents = {pid: parent for pid, _ in every_process() if (parent := _parent(pid)) is not None}
    doomed = shims + descendants(shims, parents)
    for pid in doomed:
        _kill(pid)
    deadline = time.monotonic() + 10
    while any(_parent(pid) is not None for pid in doomed) and time.monotonic() < deadline:
        time.sleep(0.05)


def _shims(folder: ClusterFolder) -> list[int]:
    """Found by the socket of the containerd that they report to, which only the cluster's has."""
    return [
        pid
        for pid, command in every_process()
        if command and Path(command[0]).name.startswith("containerd-shim") and str(folder.containerd_socket) in command
    ]


def descendants(roots: Iterable[int], parents: dict[int, int]) -> list[int]:
    """All processes below `roots`, given each process's parent."""
    found, frontier = list[int](), set(roots)
    while frontier:
        frontier = {pid for pid, parent in parents.items() if parent in frontier and pid not in found}
        found.extend(frontier)
    return found


def _parent(pid: int) -> int | None:
    """None for a process that is gone or a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    state, parent = stat[stat.rindex(")") + 2 :].split()[:2]
    return None if state == "Z" else int(parent)


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def unmount(folder: ClusterFolder, mounts: Path = Path("/proc/self/mounts")) -> None:
    for target in mounts_below(folder.root, mounts.read_text()):
        if subprocess.run(["umount", target], capture_output=True, check=False).returncode != 0:
            subprocess.run(["umount", "--lazy", target], capture_output=True, check=False)


def mounts_below(root: Path, mounts: str) -> list[str]:
    """Mount points below `root`, the innermost first. `mounts` is the text of /proc/self/mounts."""
    targets = [line.split(" ")[1].replace("\\040", " ") for line in mounts.splitlines()]
    return sorted((target for target in targets if Path(target).is_relative_to(root)), key=len, reverse=True)


def remove_interfaces() -> None:
    for interface in _interfaces():
        subprocess.run(["ip", "link", "delete", interface], capture_output=True, check=False)


def _interfaces() -> list[str]:
    return [name for name in (node.POD_BRIDGE, node.INTERFACE) if Path("/sys/class/net", name).exists()]


def remove_cgroups() -> None:
    """The kubelet's empty groups, in every hierarchy of cgroup v1 or in the one of v2."""
    for top in (*CGROUPS.glob("kubepods"), *CGROUPS.glob("*/kubepods")):
        groups = [Path(folder) for folder, _, _ in os.walk(top, topdown=False)]
        for group in groups:
            try:
                group.rmdir()
            except OSError:
                break  # still in use: not ours to force


def remove_cni_results(results: Path = Path("/var/lib/cni/results")) -> None:
    """The CNI library's notes on each of the cluster's pods, its loopback interface included."""
    for result in results.glob(f"{node.CNI_NETWORK}-*"):
        pod = result.name.removeprefix(f"{node.CNI_NETWORK}-").split("-")[0]
        (results / f"cni-loopback-{pod}-lo").unlink(missing_ok=True)
        result.unlink()


def remove_traces(folder: ClusterFolder) -> None:
    """All of it, for a cluster whose daemons have ended.

    Raises:
        RuntimeError: something is still there; says what.
    """
    kill_containers(folder)
    unmount(folder)
    remove_interfaces()
    iptables.remove(node.CNI_NETWORK)
    remove_cgroups()
    remove_cni_results()
    shutil.rmtree(folder.root, ignore_errors=True)
    if left := traces(folder):
        raise RuntimeError(f"could not be removed: {'; '.join(left)}")


def traces(folder: ClusterFolder) -> list[str]:
    """What the cluster has on this machine now, in words. Of its daemons only those with a record are seen."""
    recorded = {name: read_record(folder.pids / name) for name in STOP_ORDER}
    return [
        *(f"process {who.pid} ({name})" for name, who in recorded.items() if who is not None and alive(who)),
        *(f"process {pid} (a container's shim)" for pid in _shims(folder)),
        *(f"mount {target}" for target in mounts_below(folder.root, Path("/proc/self/mounts").read_text())),
        *(f"interface {name}" for name in _interfaces()),
        *(f"chains in {command}" for command in iptables.with_traces(node.CNI_NETWORK)),
        *([f"files in {folder.root}"] if folder.root.exists() else []),
    ]
