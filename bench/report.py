"""How a benchmark tells its figures: a table for people, and JSON lines in bench/results/ that later runs add to."""

from __future__ import annotations

import json
import os
import platform
import time
from dataclasses import dataclass, field
from pathlib import Path

from bench.machine import cpu_name

RESULTS = Path(__file__).parent / "results"


@dataclass(slots=True)
class Report:
    """One run of one benchmark. A figure may have a bound, and whether it was kept is said beside it.

    A bound that is missed fails nothing: on a machine that does other work it says little.
    """

    name: str
    facts: dict[str, object]
    """What the run is about: model, rows, lengths."""
    _lines: list[dict[str, object]] = field(default_factory=list)

    def __post_init__(self) -> None:
        said = ", ".join(f"{key} {value}" for key, value in self.facts.items())
        print(f"{self.name} on {machine()}; {said}", flush=True)

    def line(self, what: str, shown: str, value: float, *, most: float | None = None) -> None:
        """A figure, as people read it and as a number; `most` is what it may be."""
        ok = most is None or value <= most
        bound = "" if most is None else f"at most {most:g}: {'ok' if ok else 'MISSED'}"
        print(f"  {what:<58} {shown:>22}  {bound}".rstrip(), flush=True)
        self._lines.append({"what": what, "value": value, "most": most, "ok": ok})

    def write(self) -> None:
        """Add the figures to the file of this benchmark."""
        RESULTS.mkdir(exist_ok=True)
        common = {"bench": self.name, "at": round(time.time()), "machine": machine(), **self.facts}
        with (RESULTS / f"{self.name}.jsonl").open("a") as file:
            file.writelines(json.dumps({**common, **line}) + "\n" for line in self._lines)


def machine() -> str:
    """The processor, how many of them, and Python's version."""
    return f"{os.cpu_count()} x {cpu_name()}, Python {platform.python_version()}"
