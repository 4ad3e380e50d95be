"""The one node: its address, containerd, the kubelet and kube-proxy, with their configuration files.

Traps that the settings answer: CAP_SYS_RESOURCE may be missing (`restrict_oom_score_adj`); a runc without seccomp may
come first in PATH (`BinaryName`); cgroup v1 and swap are allowed; containerd takes the alphabetically first network of
/etc/cni/net.d, so the cluster has a folder of its own.
"""

import json
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.control_plane import POD_NETWORK, ControlPlane
from tests.cluster.paths import ClusterFolder
from tests.cluster.processes import Daemon

NAME = "kvik-local"
ADDRESS = "172.31.99.1"
INTERFACE = "kvik0"  # carries ADDRESS; a bridge, because a kernel may lack the `dummy` link type
POD_BRIDGE = "kvik-pods"
POD_RANGE = "10.244.0.0/24"
CNI_NETWORK = "kvik-local"
CNI_PLUGINS = (Path("/usr/lib/cni"), Path("/opt/cni/bin"))
DNS_ADDRESS = "10.96.0.10"
PAUSE_IMAGE = "localhost/kvik/pause:1"


@dataclass(frozen=True, slots=True)
class Node:
    """Writes the node's files and names its daemons; `plane` is the control plane that it joins."""

    folder: ClusterFolder
    plane: ControlPlane

    def prepare(self) -> None:
        """Interface and configuration files, before any of the daemons starts."""
        if subprocess.run(["ip", "link", "show", INTERFACE], capture_output=True, check=False).returncode != 0:
            _ip("link", "add", INTERFACE, "type", "bridge")
        _ip("address", "replace", f"{ADDRESS}/32", "dev", INTERFACE)
        _ip("link", "set", INTERFACE, "up")
        _enable_forwarding()
        self.folder.cni.mkdir(parents=True, exist_ok=True)
        (self.folder.cni / "10-kvik.conflist").write_text(json.dumps(self._cni()))
        self._containerd_config.write_text(self._containerd())
        self._kubelet_config.write_text(json.dumps(self._kubelet()))

    @property
    def _containerd_config(self) -> Path:
        return self.folder.root / "containerd.toml"

    @property
    def _kubelet_config(self) -> Path:
        return self.folder.root / "kubelet.json"

    def _cni(self) -> dict[str, object]:
        addresses = {
            "type": "host-local",
            "ranges": [[{"subnet": POD_RANGE}]],
            "routes": [{"dst": "0.0.0.0/0"}],
            "dataDir": str(self.folder.root / "cni-addresses"),
        }
        bridge = {"type": "bridge", "bridge": POD_BRIDGE, "isGateway": True, "ipMasq": True, "hairpinMode": True}
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
        pki = self.folder.pki
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": ADDRESS,
            "healthzBindAddress": "127.0.0.1",
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(pki / "ca.crt")},
            },
            "authorization": {"mode": "Webhook"},
            "cgroupDriver": "cgroupfs",
            "failCgroupV1": False,
            "failSwapOn": False,
            "clusterDNS": [DNS_ADDRESS],
            "clusterDomain": "cluster.local",
            "resolvConf": str(self._resolv_conf()),
            "containerRuntimeEndpoint": f"unix://{self.folder.containerd_socket}",
            "tlsCertFile": str(pki / "kubelet.crt"),
            "tlsPrivateKeyFile": str(pki / "kubelet.key"),
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
        return self.plane.daemon("containerd", "--config", str(self._containerd_config))

    def kubelet(self) -> Daemon:
        return self.plane.daemon(
            "kubelet",
            f"--config={self._kubelet_config}",
            f"--kubeconfig={self.folder.root / 'kubelet.conf'}",
            f"--hostname-override={NAME}",
            f"--node-ip={ADDRESS}",
            f"--root-dir={self.folder.kubelet}",
        )

    def proxy(self) -> Daemon:
        return self.plane.daemon(
            "kube-proxy",
            f"--kubeconfig={self.folder.kubeconfig}",
            f"--cluster-cidr={POD_NETWORK}",
            "--proxy-mode=iptables",
            f"--hostname-override={NAME}",
            "--healthz-bind-address=127.0.0.1:10256",
        )


def _enable_forwarding() -> None:
    """Pods reach Services on their own bridge only if bridged packets pass iptables."""
    subprocess.run(["modprobe", "br_netfilter"], capture_output=True, check=False)  # often built in, then it fails
    for setting in ("net/ipv4/ip_forward", "net/bridge/bridge-nf-call-iptables"):
        path = Path("/proc/sys") / setting
        if path.exists() and path.read_text().strip() != "1":
            path.write_text("1")


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
