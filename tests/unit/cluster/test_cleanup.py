from pathlib import Path

from tests.cluster.cleanup import descendants, mounts_below, remove_cni_results


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
