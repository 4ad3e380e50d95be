"""One node: its name and place, its containerd, kubelet and kube-proxy, with their configuration files.

Traps that the settings answer: CAP_SYS_RESOURCE may be missing (`restrict_oom_score_adj`); a runc without seccomp may
come first in PATH (`BinaryName`); cgroup v1 and swap are allowed; containerd takes the alphabetically first network of
/etc/cni/net.d, so the cluster has a folder of its own.
"""

import json
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from tests.cluster import cgroups, kubeconfig, network, pki
from tests.cluster.control_plane import POD_NETWORK, ControlPlane
from tests.cluster.network import Place
from tests.cluster.paths import NodeFolder
from tests.cluster.processes import Daemon

CNI_NETWORK = "kvik-local"
CNI_PLUGINS = (Path("/usr/lib/cni"), Path("/opt/cni/bin"))
DNS_ADDRESS = "10.96.0.10"
PAUSE_IMAGE = "localhost/kvik/pause:1"


@dataclass(frozen=True, slots=True)
class Member:
    """Who a node is. `suffix` tells the records and certificates of its programs from those of the other node."""

    name: str
    suffix: str
    place: Place
    cgroup: str
    """The kubelet keeps its pods below, and takes away whatever else it finds there."""

    def record(self, program: str) -> str:
        return program + self.suffix


FIRST = Member("kvik-local", "", Place("172.31.99.1", "10.244.0.0/24", namespace=None), cgroup="/")
SECOND = Member(
    "kvik-local-2", "-2", Place("172.31.99.2", "10.244.1.0/24", namespace="kvik-second"), cgroup="/kvik-second"
)


@dataclass(frozen=True, slots=True)
class Node:
    """Writes the node's files and names its daemons; `plane` is the control plane that it joins."""

    member: Member
    folder: NodeFolder
    plane: ControlPlane

    def prepare(self) -> None:
        """Certificate and configuration files, before any of the daemons starts. Its network is there."""
        place, pair = self.member.place, self.member.record("kubelet")
        pki.write_kubelet_pair(self.plane.pki, pair, self.member.name, place.address)
        cgroups.make(self.member.cgroup)
        self.folder.cni.mkdir(parents=True, exist_ok=True)
        (self.folder.cni / "10-kvik.conflist").write_text(json.dumps(self._cni()))
        self._containerd_config.write_text(self._containerd())
        self._kubelet_config.write_text(json.dumps(self._kubelet()))
        kubeconfig.write_kubeconfig(self._kubeconfig, self.plane.url, self.plane.pki, pair)

    @property
    def _kubeconfig(self) -> Path:
        return self.folder.root / "kubelet.conf"

    @property
    def _containerd_config(self) -> Path:
        return self.folder.root / "containerd.toml"

    @property
    def _kubelet_config(self) -> Path:
        return self.folder.root / "kubelet.json"

    def _cni(self) -> dict[str, object]:
        addresses = {
            "type": "host-local",
            "ranges": [[{"subnet": self.member.place.pod_range}]],
            "routes": [{"dst": "0.0.0.0/0"}],
            "dataDir": str(self.folder.root / "cni-addresses"),
        }
        bridge = {
            "type": "bridge",
            "bridge": network.POD_BRIDGE,
            "isGateway": True,
            "ipMasq": True,
            "hairpinMode": True,
        }
        return {"cniVersion": "1.0.0", "name": CNI_NETWORK, "plugins": [bridge | {"ipam": addresses}]}

    def _containerd(self) -> str:
        runc = shutil.which("runc", path="/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin") or "runc"
        plugins = next((folder for folder in CNI_PLUGINS if (folder / "bridge").exists()), CNI_PLUGINS[0])
        return f"""version = 2
root = "{self.folder.containerd_root}/root"
state = "{self.folder.containerd_root}/state"
[grpc]
  address = "{self.folder.containerd_socket}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE_IMAGE}"
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  stream_server_address = "127.0.0.1"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      BinaryName = "{runc}"
      Root = "{self.folder.containerd_root}/runc"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{plugins}"
    conf_dir = "{self.folder.cni}"
"""

    def _kubelet(self) -> dict[str, object]:
        own, pair = self.plane.pki, self.member.record("kubelet")
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": self.member.place.address,
            "healthzBindAddress": "127.0.0.1",
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(own / "ca.crt")},
            },
            "authorization": {"mode": "Webhook"},
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": self.member.cgroup,
            "failCgroupV1": False,
            "failSwapOn": False,
            "clusterDNS": [DNS_ADDRESS],
            "clusterDomain": "cluster.local",
            "resolvConf": str(self._resolv_conf()),
            "containerRuntimeEndpoint": f"unix://{self.folder.containerd_socket}",
            "tlsCertFile": str(own / f"{pair}.crt"),
            "tlsPrivateKeyFile": str(own / f"{pair}.key"),
            "podLogsDir": str(self.folder.root / "pod-logs"),
            "imageMinimumGCAge": "24h",
            "imageGCHighThresholdPercent": 100,
            "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
            "nodeStatusUpdateFrequency": "5s",
        }

    def _resolv_conf(self) -> Path:
        """An empty one: no search domain of this machine reaches a pod, and names outside the cluster fail fast."""
        target = self.folder.root / "resolv.conf"
        target.touch()
        return target

    def containerd(self) -> Daemon:
        return self._daemon("containerd", "--config", str(self._containerd_config))

    def kubelet(self) -> Daemon:
        return self._daemon(
            "kubelet",
            f"--config={self._kubelet_config}",
            f"--kubeconfig={self._kubeconfig}",
            f"--hostname-override={self.member.name}",
            f"--node-ip={self.member.place.address}",
            f"--root-dir={self.folder.kubelet}",
        )

    def proxy(self) -> Daemon:
        return self._daemon(
            "kube-proxy",
            f"--kubeconfig={self.plane.kubeconfig}",
            f"--cluster-cidr={POD_NETWORK}",
            "--proxy-mode=iptables",
            f"--hostname-override={self.member.name}",
            "--healthz-bind-address=127.0.0.1:10256",
            *(_CONNTRACK_AS_IT_IS if self.member.place.namespace else ()),
        )

    def _daemon(self, program: str, *flags: str) -> Daemon:
        daemon, name = self.plane.daemon(program, *flags), self.member.record(program)
        command = self.member.place.inside(*daemon.command)
        return replace(
            daemon,
            name=name,
            command=command,
            record=daemon.record.with_name(name),
            log=daemon.log.with_name(f"{name}.log"),
        )


_CONNTRACK_AS_IT_IS = (
    "--conntrack-max-per-core=0",
    "--conntrack-tcp-timeout-established=0s",
    "--conntrack-tcp-timeout-close-wait=0s",
)
"""Only this machine's own network may set these."""
