"""Unix sockets that the cluster's programs make outside its folder, at paths that cannot be configured."""

import errno
import socket
from pathlib import Path

from tests.cluster.paths import NodeFolder

DEVICE_PLUGINS = Path("/var/lib/kubelet/device-plugins")


def of_shims(node: NodeFolder) -> list[Path]:
    """Each shim's own, as containerd has noted them with its tasks: a shim that is killed leaves it behind."""
    tasks = node.containerd_root / "state" / "io.containerd.runtime.v2.task"
    notes = {path.read_text().strip() for path in tasks.glob("*/*/address")}
    return sorted(Path(note.removeprefix("unix://")) for note in notes if note.startswith("unix:///"))


def remove_of_shims(node: NodeFolder) -> None:
    """Of shims that have ended, before the folder goes that says which were the node's."""
    for path in of_shims(node):
        path.unlink(missing_ok=True)


def remove_of_device_plugins(node: NodeFolder, folder: Path = DEVICE_PLUGINS) -> None:
    """The kubelet's, if this node ever had one and nobody answers there, and folders that are empty then."""
    if not node.kubelet.exists():
        return
    path = folder / "kubelet.sock"
    if _is_forsaken(path):
        path.unlink()
        (folder / "kubelet_internal_checkpoint").unlink(missing_ok=True)
    for empty in (folder, folder.parent):
        try:
            empty.rmdir()
        except OSError:
            return  # it is not there, or holds what others put into it


def _is_forsaken(path: Path) -> bool:
    """Whether this is a socket that nobody listens at any more."""
    if not path.is_socket():
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        return client.connect_ex(str(path)) == errno.ECONNREFUSED
