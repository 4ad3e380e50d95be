import io
import json
import tarfile
from pathlib import Path

import pytest

from tests.cluster.load_image import archive, chain_ids, digest_of, read_image

NAME = "localhost/kvik/engine:1"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store of one image with two layers, laid out as containers/storage does."""
    config = json.dumps({"rootfs": {"diff_ids": ["sha256:aa", "sha256:bb"]}}).encode()
    manifest = json.dumps(
        {"mediaType": "application/vnd.oci.image.manifest.v1+json", "config": {"digest": digest_of(config)}}
    )
    layers = [{"id": "top", "parent": "base"}, {"id": "base"}]
    image = tmp_path / "overlay-images" / "image1"
    image.mkdir(parents=True)
    (tmp_path / "overlay-layers").mkdir()
    (tmp_path / "overlay-layers/layers.json").write_text(json.dumps(layers))
    (tmp_path / "overlay-images/images.json").write_text(
        json.dumps([{"id": "image1", "names": [NAME], "layer": "top"}])
    )
    (image / "manifest").write_text(manifest)
    (image / "=c2hh").write_bytes(config)
    return tmp_path


def test_chain_ids_are_those_of_the_image_specification():
    # sha256 of the text "sha256:aa sha256:bb", by sha256sum.
    want = "sha256:" + "b68ad689d6d1ec110ea1c13617437ad6f3766d4b3b309f6a603a222e07a0164f"
    assert list(chain_ids(["sha256:aa", "sha256:bb"])) == [("sha256:aa", None), (want, "sha256:aa")]


def test_layers_are_read_base_first_with_their_folders(store: Path):
    image = read_image(store, NAME)
    assert [(parent, diff) for _, parent, diff in image.layers] == [
        (None, store / "overlay/base/diff"),
        ("sha256:aa", store / "overlay/top/diff"),
    ]


def test_an_unknown_image_is_named(store: Path):
    with pytest.raises(LookupError, match="localhost/kvik/none:1"):
        read_image(store, "localhost/kvik/none:1")


def test_the_archive_holds_manifest_and_config_and_no_layer(store: Path):
    image = read_image(store, NAME)
    with tarfile.open(fileobj=io.BytesIO(archive(image))) as tar:
        names = tar.getnames()
        index = json.load(tar.extractfile("index.json") or io.BytesIO())
    blobs = {f"blobs/sha256/{digest_of(content)[7:]}" for content in (image.manifest, image.config)}
    assert set(names) == {"oci-layout", "index.json"} | blobs
    assert index["manifests"][0]["annotations"]["io.containerd.image.name"] == NAME
