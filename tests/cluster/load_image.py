"""Gives an image of buildah's store to containerd without copying it: 5 GB in about a second.

Each layer's files are hard-linked from buildah's overlay store into a containerd snapshot that has the name containerd
would give it (the chain id); then an archive of only manifest and config is imported, and containerd's unpacking finds
every snapshot there already. Both stores must be on the root file system.
"""

import hashlib
import io
import json
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cluster.paths import NodeFolder

_PROTECTED = "containerd.io/gc.root"


@dataclass(frozen=True, slots=True)
class StoredImage:
    """An image in the store. `layers` are (chain id, parent chain id, folder of the files), the base first."""

    name: str
    manifest: bytes
    config: bytes
    layers: tuple[tuple[str, str | None, Path], ...]


def chain_ids(diff_ids: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    """(chain id, its parent's) of each layer, as the OCI image specification defines them."""
    parent: str | None = None
    for diff_id in diff_ids:
        chain = diff_id if parent is None else digest_of(f"{parent} {diff_id}".encode())
        yield chain, parent
        parent = chain


def digest_of(content: bytes) -> str:
    return "sha256:" + hashlib.sha256(content).hexdigest()


def read_image(store: Path, name: str) -> StoredImage:
    """Reads the records of one image.

    Raises:
        LookupError: the store has no image of this name.
    """
    records: list[dict[str, Any]] = json.loads((store / "overlay-images/images.json").read_text())
    record = next((image for image in records if name in (image.get("names") or [])), None)
    if record is None:
        raise LookupError(f"buildah has no image {name}")
    folder = store / "overlay-images" / record["id"]
    manifest = (folder / "manifest").read_bytes()
    wanted = json.loads(manifest)["config"]["digest"]
    config = next(data for file in folder.iterdir() if digest_of(data := file.read_bytes()) == wanted)
    folders = [store / "overlay" / layer / "diff" for layer in _layer_ids(store, record["layer"])]
    chains = chain_ids(json.loads(config)["rootfs"]["diff_ids"])
    layers = tuple((chain, parent, diff) for (chain, parent), diff in zip(chains, folders, strict=True))
    return StoredImage(name, manifest, config, layers)


def has_image(name: str) -> bool:
    """Whether buildah's store has an image of this full name."""
    try:
        read_image(_store(), name)
    except LookupError:
        return False
    return True


def _layer_ids(store: Path, top: str) -> list[str]:
    """The storage ids from the base to `top`."""
    records = {layer["id"]: layer for layer in json.loads((store / "overlay-layers/layers.json").read_text())}
    chain: list[str] = []
    current: str | None = top
    while current:
        chain.append(current)
        current = records[current].get("parent")
    return chain[::-1]


def archive(image: StoredImage) -> bytes:
    """An OCI archive of manifest and config, without any layer."""
    index = {
        "schemaVersion": 2,
        "manifests": [
            {
                "mediaType": json.loads(image.manifest)["mediaType"],
                "digest": digest_of(image.manifest),
                "size": len(image.manifest),
                "annotations": {
                    "io.containerd.image.name": image.name,
                    "org.opencontainers.image.ref.name": image.name,
                },
            }
        ],
    }
    files = {"oci-layout": b'{"imageLayoutVersion":"1.0.0"}', "index.json": json.dumps(index).encode()}
    for blob in (image.manifest, image.config):
        files["blobs/sha256/" + digest_of(blob).removeprefix("sha256:")] = blob
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for path, content in files.items():
            entry = tarfile.TarInfo(path)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


@dataclass(frozen=True, slots=True)
class Loader:
    """Loads images into the containerd of `node`."""

    node: NodeFolder

    def load(self, name: str) -> None:
        """Loads one image by its full name; nothing is copied that is there already.

        Raises:
            LookupError: buildah has no such image.
            RuntimeError: containerd refused a step, or the stores are not on one file system.
        """
        image = read_image(_store(), name)
        made = [chain for chain, parent, files in image.layers if self._make_snapshot(chain, parent, files)]
        self._ctr("images", "import", "-", stdin=archive(image))
        for chain in made:
            self._ctr("snapshots", "label", chain, f"{_PROTECTED}=")
        print(f"cluster: loaded {name} ({len(made)} new of {len(image.layers)} layers)", flush=True, file=sys.stderr)

    def names(self) -> list[str]:
        """Of the images that the node has."""
        return self._ctr("images", "list", "--quiet").split()

    def _make_snapshot(self, chain: str, parent: str | None, files: Path) -> bool:
        """False if containerd has it already."""
        if self._try_ctr("snapshots", "info", chain).returncode == 0:
            return False
        key = f"load-{chain}"
        self._try_ctr("snapshots", "rm", key)  # of a load that was interrupted
        self._ctr("snapshots", "prepare", key, *([parent] if parent else []))
        self._link(files, self._writable_folder(key))
        self._ctr("snapshots", "commit", chain, key)
        # Until the image refers to it, nothing else keeps it from being collected.
        self._ctr("snapshots", "label", chain, f"{_PROTECTED}=loading")
        return True

    def _writable_folder(self, key: str) -> Path:
        mounts = self._ctr("snapshots", "mounts", "/mnt", key)
        found = re.search(r"upperdir=([^,\s]+)", mounts) or re.search(r"-t bind (\S+)", mounts)
        if found is None:
            raise RuntimeError(f"containerd's snapshotter is not overlayfs: {mounts.strip()}")
        return Path(found[1])

    def _link(self, source: Path, target: Path) -> None:
        """Hard links need one view of the file system, and buildah keeps a bind mount over its own folder: so they are
        made through a second view of `/`, in a mount namespace that ends with the command."""
        script = 'mount --bind / "$1" && exec cp --archive --link "$1$2/." "$1$3"'
        with tempfile.TemporaryDirectory() as view:
            linked = subprocess.run(
                ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh", view, source, target],
                capture_output=True,
                text=True,
                check=False,
            )
        if linked.returncode != 0:
            raise RuntimeError(
                f"buildah's store and the cluster must both be on the root file system: {linked.stderr.strip()[:500]}"
            )

    def _ctr(self, *arguments: str, stdin: bytes = b"") -> str:
        done = self._try_ctr(*arguments, stdin=stdin)
        if done.returncode != 0:
            raise RuntimeError(f"ctr {' '.join(arguments)}: {done.stderr.decode().strip()}")
        return done.stdout.decode()

    def _try_ctr(self, *arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        command = ["ctr", "--address", str(self.node.containerd_socket), "--namespace", "k8s.io", *arguments]
        return subprocess.run(command, input=stdin, capture_output=True, check=False)


def _store() -> Path:
    done = subprocess.run(["buildah", "info"], capture_output=True, text=True, check=True)
    store = json.loads(done.stdout)["store"]
    if store["GraphDriverName"] != "overlay":
        raise RuntimeError(f"buildah's store must be of kind overlay, not {store['GraphDriverName']}")
    return Path(store["GraphRoot"])
