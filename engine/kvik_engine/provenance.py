"""Where a folder of model files came from, as `kvik model pull` notes beside them. Standard library only."""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import dataclass
from pathlib import Path

PROVENANCE_FILE = ".kvik.json"


def write_provenance(folder: Path, source: str, revision: str | None, now: dt.datetime) -> None:
    """Note source, resolved revision and time; written last, so its presence says that the folder is complete."""
    finished = now.astimezone(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    text = json.dumps({"source": source, "revision": revision, "finished_at": finished})
    making = folder / (PROVENANCE_FILE + ".part")
    making.write_text(text)
    making.rename(folder / PROVENANCE_FILE)


@dataclass(frozen=True, slots=True)
class Provenance:
    """What a note says; None where it says nothing."""

    revision: str | None = None
    finished_at: str | None = None


def read_provenance(model: Path) -> Provenance:
    """The note beside a model's folder or file; an empty one if there is none, or none that can be read."""
    folder = model.parent if model.is_file() else model
    try:
        note = json.loads((folder / PROVENANCE_FILE).read_text())
    except (OSError, ValueError):
        return Provenance()
    known = note if isinstance(note, dict) else {}
    values = {name: known.get(name) for name in ("revision", "finished_at")}
    return Provenance(**{name: value for name, value in values.items() if isinstance(value, str)})
