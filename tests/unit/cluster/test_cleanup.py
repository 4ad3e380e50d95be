from pathlib import Path

import pytest

from tests.cluster import cleanup, iptables
from tests.cluster.cleanup import (
    another_kubelet,
    descendants,
    mounts_below,
    refuse_another_cluster,
    remove_cni_results,
)
from tests.cluster.paths import ClusterFolder


def test_mounts_are_taken_innermost_first_and_only_below_the_cluster():
    mounts = """/dev/vda / ext4 rw 0 0
overlay /cache/kvik/cluster/containerd/run/rootfs overlay rw 0 0
tmpfs /cache/kvik/cluster/kubelet/pods/a\\040b/volumes tmpfs rw 0 0
tmpfs /cache/kvik/cluster/containerd/run/rootfs/dev/shm tmpfs rw 0 0
tmpfs /cache/kvik/cluster-of-somebody-else tmpfs rw 0 0
"""
    assert mounts_below(Path("/cache/kvik/cluster"), mounts) == [
        "/cache/kvik/cluster/containerd/run/rootfs/dev/shm",
        "/cache/kvik/cluster/kubelet/pods/a b/volumes",
        "/cache/kvik/cluster/containerd/run/rootfs",
    ]


def test_all_generations_below_a_shim_are_found_and_no_other():
    parents = {1: 0, 10: 1, 11: 10, 12: 11, 13: 11, 20: 1, 21: 20}
    assert sorted(descendants([10], parents)) == [11, 12, 13]


def test_network_notes_of_other_clusters_stay(tmp_path: Path):
    for name in ("kvik-local-abc-eth0", "cni-loopback-abc-lo", "cni-loopback-def-lo", "podman-def-eth0"):
        (tmp_path / name).touch()
    remove_cni_results(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"cni-loopback-def-lo", "podman-def-eth0"}


@pytest.mark.parametrize(
    "command",
    [
        ["/usr/bin/kubelet", "--config=x"],
        ["/usr/local/bin/k3s server"],
        ["/usr/local/bin/k3s", "agent"],
        ["/var/lib/rancher/k3s/data/abc/bin/k3s-server", "server"],
        ["/snap/microk8s/7000/kubelite", "--scheduler-args-file=x"],
        ["/usr/local/bin/rke2", "server"],
        ["/usr/local/bin/k0s", "controller", "--single"],
    ],
)
def test_a_kubelet_is_seen_by_whatever_name_it_runs(command: list[str]):
    """k3s and MicroK8s run the kubelet inside themselves; their iptables chains would be flushed with ours."""
    assert another_kubelet([(1, []), (2, [""]), (3, ["/usr/bin/vi", "k3s"]), (4, command)], own={5}) == (4, command[0])


def test_the_clusters_own_kubelets_are_none_of_others():
    kubelets = [(pid, ["/cache/kvik/bin/kubelet"]) for pid in (4, 5)]
    assert another_kubelet(kubelets, own={4, 5}) is None
    assert another_kubelet(kubelets, own={4}) == (5, "/cache/kvik/bin/kubelet")


def test_chains_without_a_folder_of_ours_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cleanup, "every_process", list)
    monkeypatch.setattr(iptables, "foreign_chains", lambda network: ["KUBE-SERVICES"])
    refuse_another_cluster(ClusterFolder(tmp_path))
    with pytest.raises(RuntimeError, match="KUBE-SERVICES"):
        refuse_another_cluster(ClusterFolder(tmp_path / "never-made"))
