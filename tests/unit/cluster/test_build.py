import shutil
from pathlib import Path

import pytest

from tests.cluster import golang
from tests.cluster.build import source_hash
from tests.cluster.paths import GO_SOURCES


def test_a_build_is_named_by_content_not_by_place(tmp_path: Path):
    copy = shutil.copytree(GO_SOURCES, tmp_path / "elsewhere")
    assert source_hash(copy) == source_hash(GO_SOURCES)


def test_a_changed_pin_is_another_build(tmp_path: Path):
    copy = shutil.copytree(GO_SOURCES, tmp_path / "elsewhere")
    (copy / "go.sum").write_text((copy / "go.sum").read_text() + "\n")
    assert source_hash(copy) != source_hash(GO_SOURCES)


@pytest.mark.parametrize(
    ("says", "want"),
    [("go version go1.26.8 linux/amd64", (1, 26)), ("go version go1.9 linux/amd64", (1, 9)), ("no such thing", (0, 0))],
)
def test_the_version_of_go_is_read_from_what_it_says(tmp_path: Path, says: str, want: tuple[int, int]):
    command = tmp_path / "go"
    command.write_text(f"#!/bin/sh\necho '{says}'\n")
    command.chmod(0o755)
    assert golang.version(str(command)) == want
