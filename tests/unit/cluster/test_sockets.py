import socket
from pathlib import Path

import pytest

from tests.cluster.paths import NodeFolder
from tests.cluster.sockets import remove_of_device_plugins, remove_of_shims


def note(node: NodeFolder, task: str, address: str) -> None:
    folder = node.containerd_root / "state/io.containerd.runtime.v2.task/k8s.io" / task
    folder.mkdir(parents=True)
    (folder / "address").write_text(address)


def test_the_sockets_of_a_nodes_shims_go_and_those_of_others_stay(tmp_path: Path):
    sockets, node = tmp_path / "run/containerd/s", NodeFolder(tmp_path / "cluster")
    sockets.mkdir(parents=True)
    for name in ("sandbox", "somebody-elses"):
        (sockets / name).touch()
    note(node, "pod", f"unix://{sockets / 'sandbox'}")
    note(node, "its-container", f"unix://{sockets / 'sandbox'}\n")
    note(node, "gone-by-itself", f"unix://{sockets / 'gone'}")
    note(node, "cut-by-a-crash", "")

    remove_of_shims(node)

    assert [path.name for path in sockets.iterdir()] == ["somebody-elses"]


@pytest.fixture
def plugins(tmp_path: Path) -> Path:
    folder = tmp_path / "lib/device-plugins"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def node(tmp_path: Path) -> NodeFolder:
    """One that has had a kubelet."""
    node = NodeFolder(tmp_path / "cluster")
    node.kubelet.mkdir(parents=True)
    return node


def listen(path: Path) -> socket.socket:
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(path))
    server.listen()
    return server


def test_the_kubelets_socket_goes_with_its_folders(plugins: Path, node: NodeFolder):
    listen(plugins / "kubelet.sock").close()
    (plugins / "kubelet_internal_checkpoint").touch()
    remove_of_device_plugins(node, plugins)
    assert not plugins.parent.exists()


def test_a_kubelets_socket_that_answers_is_another_kubelets(plugins: Path, node: NodeFolder):
    with listen(plugins / "kubelet.sock"):
        remove_of_device_plugins(node, plugins)
        assert (plugins / "kubelet.sock").exists()


def test_what_device_plugins_of_others_left_stays(plugins: Path, node: NodeFolder):
    listen(plugins / "kubelet.sock").close()
    (plugins / "gpu.sock").touch()
    remove_of_device_plugins(node, plugins)
    assert [path.name for path in plugins.iterdir()] == ["gpu.sock"]


def test_a_socket_is_left_alone_where_the_cluster_never_ran(plugins: Path, tmp_path: Path):
    listen(plugins / "kubelet.sock").close()
    remove_of_device_plugins(NodeFolder(tmp_path / "never-made"), plugins)
    assert (plugins / "kubelet.sock").exists()
