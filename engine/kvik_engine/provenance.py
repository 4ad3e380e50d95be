"""Where a folder of model files came from, as `kvik model pull` notes beside them. Standard library only."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path

PROVENANCE_FILE = ".kvik.json"


def write_provenance(folder: Path, source: str, revision: str | None, now: dt.datetime) -> None:
    """Note source, resolved revision and time; written last, so its presence says that the folder is complete."""
    finished = now.astimezone(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    text = json.dumps({"source": source, "revision": revision, "finished_at": finished})
    making = folder / (PROVENANCE_FILE + ".part")
    making.write_text(text)
    making.rename(folder / PROVENANCE_FILE)
