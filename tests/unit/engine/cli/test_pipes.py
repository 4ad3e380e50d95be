"""Commands whose reader leaves, as `head` does, end at once and say nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvik_engine.cli import main
from kvik_engine.exits import EXIT_NO_READER
from tests.support.model_files import CONFIG

PLAN = ("plan", "config.json", "--memory=1GiB")
COMMANDS: list[tuple[str, ...]] = [
    PLAN,
    (*PLAN, "--json"),
    ("plan", "--help"),
    ("simulate", "--workload=chat", "--seconds=1"),
    ("model", "digest", "."),
    ("version",),
    ("--help",),
]


def without_a_reader(folder: Path, *arguments: str, unbuffered: str = "") -> subprocess.CompletedProcess[str]:
    """The command's output goes into a pipe whose other end is closed before it starts."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        return subprocess.run(
            [sys.executable, "-m", "kvik_engine", *arguments],
            stdout=writer,
            stderr=subprocess.PIPE,
            cwd=folder,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
            check=False,
            timeout=60,
            text=True,
        )
    finally:
        os.close(writer)


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_a_command_without_a_reader_ends_quietly(arguments: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "model.safetensors").write_bytes(b"")
    ended = without_a_reader(tmp_path, *arguments)
    assert (ended.returncode, ended.stderr) == (EXIT_NO_READER, "")


def test_nor_is_there_a_word_where_every_line_is_written_at_once(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    ended = without_a_reader(tmp_path, *PLAN, unbuffered="1")
    assert (ended.returncode, ended.stderr) == (EXIT_NO_READER, "")


def break_a_socket(*_: object) -> int:
    raise BrokenPipeError("a socket's other end is closed")


@pytest.fixture
def closed_stdout(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as stdout:
        monkeypatch.setattr("sys.stdout", stdout)
        yield


def test_a_socket_that_breaks_while_somebody_reads_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ended any command with 141 and no word."""
    monkeypatch.setattr("kvik_engine.cli.version.run", break_a_socket)
    with pytest.raises(BrokenPipeError, match="a socket"):
        main(["version"])


@pytest.mark.usefixtures("closed_stdout")
def test_an_engine_never_ends_without_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvik_engine.cli.serve.run", break_a_socket)
    with pytest.raises(BrokenPipeError, match="a socket"):
        main(["serve", "model"])


def test_an_error_is_told_without_a_reader_too(tmp_path: Path) -> None:
    ended = without_a_reader(tmp_path, *PLAN)
    assert ended.returncode == 78
    assert ended.stderr.startswith("ModelNotFound")
