"""Takes away everything that the cluster put on this machine, whether it was stopped or crashed."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable, Set
from pathlib import Path

from tests.cluster import cgroups, enforcer, iptables, network, node, sockets
from tests.cluster.node import FIRST, SECOND
from tests.cluster.paths import ClusterFolder, NodeFolder
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
NODE_STOP_ORDER = ("kubelet", "kube-proxy", "containerd")
KUBELETS = frozenset({"kubelet", "kubelite", "k3s", "k3s-server", "k3s-agent", "rke2", "k0s"})
"""Programs that are a kubelet, or have one inside."""


def refuse_another_cluster(folder: ClusterFolder) -> None:
    """Two kubelets would share cgroups and iptables chains, and taking away ours would take away the other's.

    Raises:
        RuntimeError: this machine runs a kubelet that is not the cluster's, or has the iptables chains of one.
    """
    records = [read_record(folder.pids / member.record("kubelet")) for member in (FIRST, SECOND)]
    own = {record.pid for record in records if record is not None}
    if (other := another_kubelet(every_process(), own)) is not None:
        raise RuntimeError(f"process {other[0]} is another cluster's kubelet on this machine: {other[1]}")
    if not folder.root.exists() and (chains := iptables.foreign_chains(node.CNI_NETWORK)):
        raise RuntimeError(
            f"this machine has the iptables chains of another cluster ({', '.join(chains[:3])}, ...), which ours would"
            " replace; if that cluster is gone, remove its chains or restart the machine"
        )


def another_kubelet(processes: Iterable[tuple[int, list[str]]], own: Set[int]) -> tuple[int, str] | None:
    """(pid, program) of the first kubelet among (pid, command line) that is none of the processes `own`. Pure."""
    for pid, command in processes:
        # k3s writes its whole command line into the first argument.
        names = {Path(command[0]).name, Path(command[0].split(" ")[0]).name} if command and command[0] else set()
        if pid not in own and names & KUBELETS:
            return pid, command[0]
    return None


def stop_daemons(folder: ClusterFolder) -> None:
    """Nothing of it is kept, so nobody gets long to finish."""
    enforcer.stop(folder)
    stop_second_node(folder)
    for name in STOP_ORDER:
        end_recorded(folder.pids / name, patience=2.0)


def stop_second_node(folder: ClusterFolder) -> None:
    for program in NODE_STOP_ORDER:
        end_recorded(folder.pids / SECOND.record(program), patience=2.0)


def kill_containers(folder: NodeFolder) -> None:
    """Ends every container and its shim. A shim outlives containerd."""
    shims = _shims(folder)
    parents = {pid: parent for pid, _ in every_process() if (parent := _parent(pid)) is not None}
    doomed = shims + descendants(shims, parents)
    for pid in doomed:
        _kill(pid)
    deadline = time.monotonic() + 10
    while any(_parent(pid) is not None for pid in doomed) and time.monotonic() < deadline:
        time.sleep(0.05)


def _shims(folder: NodeFolder) -> list[int]:
    """Found by the socket of the containerd that they report to, which only this node has."""
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


def unmount(root: Path, mounts: Path = Path("/proc/self/mounts")) -> None:
    for target in mounts_below(root, mounts.read_text()):
        if subprocess.run(["umount", target], capture_output=True, check=False).returncode != 0:
            subprocess.run(["umount", "--lazy", target], capture_output=True, check=False)


def mounts_below(root: Path, mounts: str) -> list[str]:
    """Mount points below `root`, the innermost first. `mounts` is the text of /proc/self/mounts."""
    targets = [line.split(" ")[1].replace("\\040", " ") for line in mounts.splitlines()]
    return sorted((target for target in targets if Path(target).is_relative_to(root)), key=len, reverse=True)


def remove_cni_results(results: Path = Path("/var/lib/cni/results")) -> None:
    """The CNI library's notes on each of the cluster's pods, its loopback interface included."""
    for result in results.glob(f"{node.CNI_NETWORK}-*"):
        pod = result.name.removeprefix(f"{node.CNI_NETWORK}-").split("-")[0]
        (results / f"cni-loopback-{pod}-lo").unlink(missing_ok=True)
        result.unlink()


def remove_second_node(folder: ClusterFolder) -> None:
    """All that a second node, whose daemons have ended, has on this machine, and nothing of the first."""
    second = folder.second
    kill_containers(second)
    sockets.remove_of_shims(second)
    unmount(second.root)
    network.disconnect(SECOND.place)
    cgroups.remove(SECOND.cgroup)
    shutil.rmtree(second.root, ignore_errors=True)


def remove_traces(folder: ClusterFolder) -> None:
    """All of it, for a cluster whose daemons have ended.

    Raises:
        RuntimeError: something is still there; says what.
    """
    remove_second_node(folder)
    kill_containers(folder.first)
    sockets.remove_of_shims(folder.first)
    sockets.remove_of_device_plugins(folder.first)
    unmount(folder.root)
    network.remove(SECOND.place)
    iptables.remove(iptables.of_cluster(node.CNI_NETWORK))
    cgroups.remove(FIRST.cgroup)
    remove_cni_results()
    shutil.rmtree(folder.root, ignore_errors=True)
    if left := traces(folder):
        raise RuntimeError(f"could not be removed: {'; '.join(left)}")


def traces(folder: ClusterFolder) -> list[str]:
    """What the cluster has on this machine now, in words. Of its daemons only those with a record are seen."""
    names = [*STOP_ORDER, *(SECOND.record(program) for program in NODE_STOP_ORDER)]
    recorded = {name: read_record(folder.pids / name) for name in names}
    shims = [pid for node_folder in (folder.first, folder.second) for pid in _shims(node_folder)]
    return [
        *(f"process {who.pid} ({name})" for name, who in recorded.items() if who is not None and alive(who)),
        *(f"process {pid} (a container's shim)" for pid in shims),
        *(f"mount {target}" for target in mounts_below(folder.root, Path("/proc/self/mounts").read_text())),
        *network.traces(SECOND.place),
        *(f"chains in {command}" for command in iptables.with_traces(iptables.of_cluster(node.CNI_NETWORK))),
        *enforcer.traces(),
        *([f"files in {folder.root}"] if folder.root.exists() else []),
    ]
