"""How the CPU kernels are built and found."""

import ctypes
import os
import platform
import shutil
from pathlib import Path

import pytest

from kvik_kernels.cpu import build, library, structs
from kvik_kernels.cpu.library import (
    FOLDER,
    SOURCES,
    Library,
    LibraryUnavailable,
    library_path,
    load_library,
)
from tests.support import cpu_kernels
from tests.support.cpu_kernels import needs_compiler, needs_kernels


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


@pytest.fixture
def quick_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A compiler that writes empty files, for what is done around it."""
    folder = tmp_path / "bin"
    folder.mkdir()
    script = folder / "g++"
    script.write_text('#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\n: >"$2"\n')
    script.chmod(0o755)
    monkeypatch.setattr(build, "find_compiler", lambda: str(script))
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    return script


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


@needs_compiler
def test_a_build_takes_the_stale_ones_away_and_leaves_nothing_else(
    copied_sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "FLAGS", ("-O0", "-fPIC"))  # to be done soon
    (copied_sources / "built/kvik_cpu-0123456789abcdef.so").write_bytes(b"stale")

    assert build.main() == 0
    assert list((copied_sources / "built").iterdir()) == [library_path()]
    assert {path.name for path in copied_sources.iterdir()} == {*SOURCES, "built"}


@needs_compiler
def test_what_the_compiler_says_is_shown_and_no_library_is_left(
    copied_sources: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (copied_sources / "library.cpp").write_text("#error broken on purpose\n")

    assert build.main() == 1
    assert "broken on purpose" in capsys.readouterr().err
    assert not library_path().exists()


def test_without_a_compiler_the_build_says_what_is_missing(
    copied_sources: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(shutil, "which", lambda _: None)

    assert build.main() == 1
    assert "g++" in capsys.readouterr().err


def test_warnings_of_a_build_that_succeeds_are_shown(
    copied_sources: Path, quick_compiler: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    quick_compiler.write_text(quick_compiler.read_text() + "echo an odd conversion >&2\n")

    assert build.main() == 0
    assert "an odd conversion" in capsys.readouterr().err


def test_a_stale_library_that_another_build_has_just_taken_away_is_no_error(
    copied_sources: Path, quick_compiler: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (copied_sources / "built/kvik_cpu-0123456789abcdef.so").write_bytes(b"stale")
    unlink = Path.unlink

    def taken_away(path: Path, missing_ok: bool = False) -> None:
        os.remove(path)
        unlink(path, missing_ok=missing_ok)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", taken_away)
        assert build.main() == 0
    assert list((copied_sources / "built").iterdir()) == [library_path()]


def test_a_folder_that_cannot_be_written_is_told_in_one_line(
    copied_sources: Path, quick_compiler: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (copied_sources / "built").rmdir()
    (copied_sources / "built").write_text("a file")

    assert build.main() == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_sources_edited_during_a_build_give_no_library_of_their_name(
    copied_sources: Path, quick_compiler: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = library_path()
    run = build._run

    def edit_and_run(*command: str) -> None:
        with (copied_sources / "attention.cpp").open("a") as file:
            file.write("// edited\n")
        run(*command)

    monkeypatch.setattr(build, "_run", edit_and_run)

    assert build.main() == 0
    assert before.exists()
    assert not library_path().exists()


@needs_kernels
@pytest.mark.parametrize("name", ["SPLIT_TOKENS", "QUERY_NUMBERS", "PANEL_OUTPUTS"])
def test_a_library_that_understands_its_structs_otherwise_is_refused(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(structs, name, 128)

    differ = r"structs\.py and the headers differ in (kSplitTokens|Query|kPanelOutputs)$"
    with pytest.raises(LibraryUnavailable, match=differ):
        load_library.__wrapped__()


@needs_kernels
@pytest.mark.parametrize("name", ["Queries", "Layer", "Writes", "NewTokens"])
def test_a_struct_with_a_field_that_cpp_does_not_know_is_refused(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    longer = type(name, (getattr(structs, name),), {"_fields_": (("more", ctypes.c_int64),)})
    monkeypatch.setattr(structs, name, longer)

    with pytest.raises(LibraryUnavailable, match=f"differ in {name}$"):
        load_library.__wrapped__()


def test_tests_of_kernels_that_are_only_not_built_are_neither_skipped_nor_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    def not_built() -> Library:
        raise LibraryUnavailable("not built")

    monkeypatch.setattr(cpu_kernels, "load_library", not_built)

    assert cpu_kernels.usable_sets()[0]
