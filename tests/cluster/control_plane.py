"""The control plane's programs and their flags: etcd, API server, controller manager, scheduler.

The local cluster and the control planes of the fault tests start the same ones.
"""

import json
import os
import shutil
import ssl
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from tests.cluster import kubeconfig, pki
from tests.cluster.free_ports import free_ports
from tests.cluster.paths import AUDIT_LOG, MANIFESTS, Programs
from tests.cluster.processes import PATIENCE, Daemon, wait_until

POD_NETWORK = "10.244.0.0/16"
SERVICE_NETWORK = "10.96.0.0/16"
API_SERVICE_ADDRESS = "10.96.0.1"
PORTS = "ports.json"


@dataclass(frozen=True, slots=True)
class Ports:
    """TCP ports of the listeners on `ControlPlane.address`."""

    etcd: int
    etcd_peer: int
    apiserver: int
    controller_manager: int
    scheduler: int


def ports(address: str) -> Ports:
    """Of a new control plane."""
    return Ports(*free_ports(address, 5))


@dataclass(frozen=True, slots=True)
class ControlPlane:
    """Where one control plane lives and listens, and whether there are kubelets."""

    folder: Path
    programs: Programs
    address: str
    ports: Ports
    kubelets: bool
    dies_with_parent: bool

    @property
    def url(self) -> str:
        return f"https://{self.address}:{self.ports.apiserver}"

    @property
    def pki(self) -> Path:
        return self.folder / "pki"

    @property
    def kubeconfig(self) -> Path:
        return self.folder / "admin.conf"

    def prepare(self) -> None:
        """Certificates, kubeconfig and folders: everything that must exist before a program starts."""
        for name in ("log", "pid"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        addresses = list(dict.fromkeys(["127.0.0.1", API_SERVICE_ADDRESS, self.address]))
        pki.write_pki(self.pki, addresses)
        kubeconfig.write_kubeconfig(self.kubeconfig, self.url, self.pki, "admin")

    def daemon(self, program: str, *flags: str) -> Daemon:
        return Daemon(
            name=program,
            command=(self._executable(program), *flags),
            record=self.folder / "pid" / program,
            log=self.folder / "log" / f"{program}.log",
            environment={"PATH": os.environ.get("PATH", os.defpath), "HOME": str(self.folder)},
            dies_with_parent=self.dies_with_parent,
        )

    def _executable(self, program: str) -> str:
        own = self.programs[program]
        found = str(own) if own.exists() else shutil.which(program)
        if found is None:
            raise FileNotFoundError(f"{program} is neither built nor installed")
        return found

    def etcd(self) -> Daemon:
        clients, peers = (f"http://{self.address}:{port}" for port in (self.ports.etcd, self.ports.etcd_peer))
        return self.daemon(
            "etcd",
            f"--data-dir={self.folder / 'etcd'}",
            f"--listen-client-urls={clients}",
            f"--advertise-client-urls={clients}",
            f"--listen-peer-urls={peers}",
            f"--initial-advertise-peer-urls={peers}",
            f"--initial-cluster=default={peers}",
            "--unsafe-no-fsync",
        )

    def apiserver(self) -> Daemon:
        identity = [
            f"--tls-cert-file={self.pki / 'apiserver.crt'}",
            f"--tls-private-key-file={self.pki / 'apiserver.key'}",
            f"--client-ca-file={self.pki / 'ca.crt'}",
            f"--service-account-key-file={self.pki / 'sa.pub'}",
            f"--service-account-signing-key-file={self.pki / 'sa.key'}",
            "--service-account-issuer=https://kubernetes.default.svc",
        ]
        kubelet = [
            "--kubelet-preferred-address-types=InternalIP",  # a node's name is in nobody's DNS
            f"--kubelet-client-certificate={self.pki / 'admin.crt'}",
            f"--kubelet-client-key={self.pki / 'admin.key'}",
        ]
        # Without kubelets, what an APIService leads to is a process beside us, by the name of a Service.
        routing = "true" if self.kubelets else "false"
        aggregation = [
            f"--enable-aggregator-routing={routing}",
            f"--requestheader-client-ca-file={self.pki / 'ca.crt'}",
            "--requestheader-allowed-names=front-proxy",
            "--requestheader-username-headers=X-Remote-User",
            "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
            f"--proxy-client-cert-file={self.pki / 'front-proxy.crt'}",
            f"--proxy-client-key-file={self.pki / 'front-proxy.key'}",
        ]
        # A loopback address is refused as an endpoint of the Service `kubernetes`, and only pods would use that.
        endpoints = ["--endpoint-reconciler-type=none"] if self.address.startswith("127.") else []
        # What workloads ask of the API, for tests that look whether a right is used, or one is overstepped.
        audit = [
            f"--audit-policy-file={MANIFESTS / 'audit-policy.yaml'}",
            f"--audit-log-path={self.folder / 'log' / AUDIT_LOG}",
            "--audit-log-mode=blocking",
            "--audit-log-maxsize=100",
            "--audit-log-maxbackup=1",
        ]
        return self.daemon(
            "kube-apiserver",
            f"--etcd-servers=http://{self.address}:{self.ports.etcd}",
            f"--service-cluster-ip-range={SERVICE_NETWORK}",
            f"--bind-address={self.address}",
            f"--advertise-address={self.address}",
            f"--secure-port={self.ports.apiserver}",
            "--authorization-mode=Node,RBAC",
            "--allow-privileged=true",
            "--shutdown-delay-duration=0s",
            *identity,
            *kubelet,
            *aggregation,
            *endpoints,
            *(audit if self.kubelets else []),
        )

    def controller_manager(self) -> Daemon:
        return self.daemon(
            "kube-controller-manager",
            f"--kubeconfig={self.kubeconfig}",
            f"--bind-address={self.address}",
            f"--secure-port={self.ports.controller_manager}",
            f"--cluster-cidr={POD_NETWORK}",
            "--allocate-node-cidrs=true",
            "--leader-elect=false",
            "--use-service-account-credentials",
            "--horizontal-pod-autoscaler-sync-period=5s",
            f"--root-ca-file={self.pki / 'ca.crt'}",
            f"--service-account-private-key-file={self.pki / 'sa.key'}",
            f"--cluster-signing-cert-file={self.pki / 'ca.crt'}",
            f"--cluster-signing-key-file={self.pki / 'ca.key'}",
        )

    def scheduler(self) -> Daemon:
        return self.daemon(
            "kube-scheduler",
            f"--kubeconfig={self.kubeconfig}",
            f"--bind-address={self.address}",
            f"--secure-port={self.ports.scheduler}",
            "--leader-elect=false",
        )

    def ready(self) -> bool:
        """Whether the API server answers /readyz with ok and has made the namespace `default`."""
        return self.get("/readyz") is not None and self.get("/api/v1/namespaces/default") is not None

    def get(self, path: str) -> bytes | None:
        """The body of a successful GET as admin; None when there is no answer or an error status."""
        trust = ssl.create_default_context(cafile=str(self.pki / "ca.crt"))
        trust.load_cert_chain(self.pki / "admin.crt", self.pki / "admin.key")
        try:
            with urllib.request.urlopen(self.url + path, timeout=5, context=trust) as response:
                body: bytes = response.read()
                return body
        except urllib.error.HTTPError as refused:
            refused.close()  # it is the open connection, too
            return None
        except (urllib.error.URLError, OSError):
            return None

    def service_account_exists(self) -> bool:
        """Whether the controller manager has made the first ServiceAccount: without one no pod is accepted."""
        return self.get("/api/v1/namespaces/default/serviceaccounts/default") is not None

    def start(self, scheduler: bool) -> list[Daemon]:
        """Starts all programs and returns them once the API server is ready and accepts pods."""
        self.prepare()
        etcd, apiserver = self.etcd(), self.apiserver()
        etcd.start()
        apiserver.start()
        wait_until("the API server to be ready", self.ready, PATIENCE, [etcd, apiserver])
        others = [self.controller_manager(), *([self.scheduler()] if scheduler else [])]
        for daemon in others:
            daemon.start()
        started = [etcd, apiserver, *others]
        wait_until("the first service account", self.service_account_exists, PATIENCE, started)
        return started

    def remember(self) -> None:
        """Writes what a later run needs to find this control plane again."""
        ports = {name: getattr(self.ports, name) for name in self.ports.__slots__}
        (self.folder / PORTS).write_text(json.dumps(ports) + "\n")


def remembered_ports(folder: Path) -> Ports:
    """Of the control plane that was started in this folder. Raises FileNotFoundError: none was."""
    return Ports(**json.loads((folder / PORTS).read_text()))
