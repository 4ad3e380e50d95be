"""JSON lines that are kept of what was measured: one for each thing that was tried, the latest."""

import fcntl
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(text) for text in path.read_text().splitlines()] if path.exists() else []


def merge(kept: Sequence[dict[str, Any]], new: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """New lines replace those of the same id; sorted by the number in it, then by its letters."""
    by_id = {line["id"]: line for line in [*kept, *new]}
    return sorted(by_id.values(), key=lambda line: (int("".join(c for c in line["id"] if c.isdigit())), line["id"]))


def keep(path: Path, line: dict[str, Any]) -> None:
    """Into the file, in place of an older line of the same id. Several runs at once may try different things."""
    path.parent.mkdir(exist_ok=True)
    with path.open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        kept = merge(read(path), [line])
        file.truncate(0)
        file.writelines(json.dumps(one) + "\n" for one in kept)


def cpu_name() -> str:
    cpuinfo = Path("/proc/cpuinfo").read_text().splitlines()
    names = [text.partition(":")[2].strip() for text in cpuinfo if text.startswith("model name")]
    return names[0] if names else "an unknown CPU"
