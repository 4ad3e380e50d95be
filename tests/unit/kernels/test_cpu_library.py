"""How the CPU kernels are built and found."""

import platform
import shutil
from pathlib import Path

import pytest

from kvik_kernels.cpu import build, library
from kvik_kernels.cpu.library import FOLDER, SOURCES, LibraryUnavailable, library_path, load_library
from tests.support.cpu_kernels import needs_kernels


@pytest.fixture
def copied_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The sources alone, in a folder where no library is built."""
    for name in SOURCES:
        shutil.copy(FOLDER / name, tmp_path)
    (tmp_path / "built").mkdir()
    monkeypatch.setattr(library, "FOLDER", tmp_path)
    monkeypatch.setattr(build, "FOLDER", tmp_path)
    monkeypatch.setattr(library, "load_library", library.load_library.__wrapped__)
    return tmp_path


@pytest.mark.parametrize("source", SOURCES)
def test_a_change_of_any_source_gives_the_library_another_name(copied_sources: Path, source: str) -> None:
    before = library_path()
    with (copied_sources / source).open("a") as file:
        file.write("\n")

    assert library_path() != before


def test_every_source_counts() -> None:
    assert set(SOURCES) == {path.name for path in FOLDER.iterdir() if path.suffix in (".h", ".cpp")} | {"build.py"}


@needs_kernels
def test_a_library_of_other_sources_is_never_loaded(copied_sources: Path) -> None:
    (copied_sources / "built/kvik_cpu-0123456789abcdef.so").write_bytes(b"stale")

    with pytest.raises(LibraryUnavailable, match="not built"):
        library.load_library()


@needs_kernels
def test_a_library_that_cannot_be_loaded_is_no_library(copied_sources: Path) -> None:
    library_path().write_bytes(b"not a library")

    with pytest.raises(LibraryUnavailable, match="cannot be loaded"):
        library.load_library()


def test_another_architecture_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")

    with pytest.raises(LibraryUnavailable, match="aarch64"):
        load_library.__wrapped__()
    assert build.main() == 0


@needs_kernels
def test_a_build_takes_the_stale_ones_away_and_leaves_nothing_else(
    copied_sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "FLAGS", ("-O0", "-fPIC"))  # to be done soon
    (copied_sources / "built/kvik_cpu-0123456789abcdef.so").write_bytes(b"stale")

    assert build.main() == 0
    assert list((copied_sources / "built").iterdir()) == [library_path()]
    assert {path.name for path in copied_sources.iterdir()} == {*SOURCES, "built"}


@needs_kernels
def test_what_the_compiler_says_is_shown_and_no_library_is_left(
    copied_sources: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (copied_sources / "library.cpp").write_text("#error broken on purpose\n")

    assert build.main() == 1
    assert "broken on purpose" in capsys.readouterr().err
    assert not library_path().exists()


@needs_kernels
def test_without_a_compiler_the_build_says_what_is_missing(
    copied_sources: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)

    assert build.main() == 1
    assert "g++" in capsys.readouterr().err
