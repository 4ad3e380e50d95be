"""Takes the local cluster down and leaves nothing of it on this machine but the cached builds and images."""

from tests.cluster import cleanup
from tests.cluster.paths import ClusterFolder


def down(folder: ClusterFolder) -> None:
    """Raises RuntimeError where another cluster is: its cgroups and iptables chains have the same names."""
    cleanup.refuse_another_cluster(folder)
    cleanup.stop_daemons(folder)
    cleanup.remove_traces(folder)
