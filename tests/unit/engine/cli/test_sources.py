"""What the user calls a model: each source has a folder of its own in the cache, and is checked before it is used."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvik_engine.cli.sources import cached_folder, fetched_model, local_model
from kvik_engine.errors import StartError, StartReason
from kvik_engine.provenance import PROVENANCE_FILE

ALIKE = [
    "hf://a--b/c@r",
    "hf://a/b--c@r",
    "hf://a-/b@r",
    "hf://a/b-@r",
    "hf://a/b@r/s",
    "hf://a/b@r--s",
    "hf://a/b@r-/s",
]


def test_sources_that_are_spelled_alike_have_folders_of_their_own() -> None:
    """One was served from the folder of the other."""
    folders = {cached_folder(source, {"HOME": "/home/x"}) for source in ALIKE}
    assert len(folders) == len(ALIKE)
    assert {folder.parent for folder in folders} == {Path("/home/x/.cache/kvik/models")}


def test_an_ordinary_source_keeps_its_folder() -> None:
    assert cached_folder("hf://some-org/a-model@main", {"HOME": "/h"}).name == "some-org--a-model@main"


@pytest.mark.parametrize("resolve", [local_model, fetched_model])
def test_a_source_that_is_none_is_refused_also_where_its_folder_is_there(tmp_path: Path, resolve: object) -> None:
    folder = tmp_path / "models" / "a--b"
    folder.mkdir(parents=True)
    (folder / PROVENANCE_FILE).write_text("{}")
    assert callable(resolve)
    with pytest.raises(StartError) as caught:
        resolve("hf://a/b", tmp_path)
    assert caught.value.reason is StartReason.CONFIG_INVALID
