"""Where the local cluster's programs, state and addresses are. Every file of this package takes them from here."""

import os
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
GO_SOURCES = Path(__file__).resolve().parent / "go"
KUBE_ROUTER_SOURCES = Path(__file__).resolve().parent / "go_kube_router"
KEDA_SOURCES = Path(__file__).resolve().parent / "go_keda"
AUDIT_LOG = "audit.log"
MANIFESTS = Path(__file__).resolve().parent / "manifests"


def cache_root() -> Path:
    """The user's cache folder for Kvik. The cluster's state lies in it, so it must be on the root file system:
    images are hard-linked, not copied."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kvik"


@dataclass(frozen=True, slots=True)
class Programs:
    """The folder of one finished build (see `build.programs`)."""

    folder: Path

    def __getitem__(self, name: str) -> Path:
        return self.folder / name

    @property
    def kubectl(self) -> Path:
        return self.folder / "kubectl"

    @property
    def helm(self) -> Path:
        return self.folder / "helm"


@dataclass(frozen=True, slots=True)
class NodeFolder:
    """The files of one node's containerd and kubelet."""

    root: Path

    @property
    def containerd_root(self) -> Path:
        return self.root / "containerd"

    @property
    def containerd_socket(self) -> Path:
        return self.root / "containerd.sock"

    @property
    def cni(self) -> Path:
        return self.root / "cni"

    @property
    def kubelet(self) -> Path:
        return self.root / "kubelet"


@dataclass(frozen=True, slots=True)
class ClusterFolder:
    """The state of the one local cluster of this machine."""

    root: Path

    @property
    def kubeconfig(self) -> Path:
        return self.root / "admin.conf"

    @property
    def pki(self) -> Path:
        return self.root / "pki"

    @property
    def logs(self) -> Path:
        return self.root / "log"

    @property
    def audit_log(self) -> Path:
        """Each request of a pod to the API server, one JSON object a line."""
        return self.logs / AUDIT_LOG

    @property
    def pids(self) -> Path:
        return self.root / "pid"

    @property
    def first(self) -> NodeFolder:
        """The first node's files lie among those of the cluster."""
        return NodeFolder(self.root)

    @property
    def second(self) -> NodeFolder:
        """Of a node that need not be there."""
        return NodeFolder(self.root / "second")


def local_cluster() -> ClusterFolder:
    """The folder of this machine's cluster, whether or not it runs."""
    return ClusterFolder(cache_root() / "cluster")
