"""Where a folder of model files came from, as `kvik model pull` notes beside them. Standard library only."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROVENANCE_FILE = ".kvik.json"
UNFINISHED_FILE = ".kvik.unfinished.json"
"""Names the files of a pull that has not ended, and of those before it."""


def begin_pull(folder: Path, files: Iterable[str]) -> None:
    """From here on the folder is not complete: the note of the last pull goes before its files do."""
    _write(folder / UNFINISHED_FILE, {"files": sorted({*files, *pulled_files(folder)})})
    (folder / PROVENANCE_FILE).unlink(missing_ok=True)


def end_pull(folder: Path, source: str, revision: str | None, files: Iterable[str], now: dt.datetime) -> None:
    """Note source, resolved revision and time; written last, so its presence says that the folder is complete."""
    finished = now.astimezone(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    note = {"source": source, "revision": revision, "finished_at": finished, "files": sorted(files)}
    _write(folder / PROVENANCE_FILE, note)
    (folder / UNFINISHED_FILE).unlink(missing_ok=True)


def pulled_files(folder: Path) -> set[str]:
    """Names of the files in `folder` that pulls brought, also those that broke off; any other file is the user's."""
    names: set[str] = set()
    for note in (PROVENANCE_FILE, UNFINISHED_FILE):
        files = _read(folder / note).get("files")
        if isinstance(files, list):
            names.update(name for name in files if isinstance(name, str) and _is_plain(name))
    return names


@dataclass(frozen=True, slots=True)
class Provenance:
    """What a note says; None where it says nothing."""

    revision: str | None = None
    finished_at: str | None = None


def read_provenance(model: Path) -> Provenance:
    """The note beside a model's folder or file; an empty one if there is none, or none that can be read."""
    folder = model.parent if model.is_file() else model
    note = _read(folder / PROVENANCE_FILE)
    values = {name: note.get(name) for name in ("revision", "finished_at")}
    return Provenance(**{name: value for name, value in values.items() if isinstance(value, str)})


def _read(path: Path) -> dict[str, Any]:
    try:
        note = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return note if isinstance(note, dict) else {}


def _is_plain(name: str) -> bool:
    """Whether it names a file of the folder itself, none of those that begin with a dot."""
    return Path(name).name == name and not name.startswith(".") and name != ""


def _write(path: Path, note: dict[str, Any]) -> None:
    making = path.with_name(path.name + ".part")
    making.write_text(json.dumps(note))
    making.rename(path)
