"""Tries on a real cluster what Kvik promises of changes: `make scoreboard`, or `python -m bench.scoreboard --only ID`.

Each row becomes a line of bench/results/scoreboard.jsonl, and all of them the page docs/reliability.md. Exit code
1 when a row that was tried is not as wanted.
"""

import signal
import subprocess
import sys
import time
import traceback
from typing import Any

from bench import kept_lines
from bench.machine import machine_now
from bench.scoreboard import deletion, nodes, posture, real_engine, reasons, under_traffic
from bench.scoreboard.installation import ROOT, Installation
from bench.scoreboard.page import PAGE, RESULTS, page
from bench.scoreboard.row import Outcome, Row, line
from images import catalog

ROWS: tuple[Row, ...] = (
    *under_traffic.ROWS,
    *real_engine.ROWS,
    *nodes.ROWS,
    *reasons.ROWS,
    *deletion.ROWS,
    *posture.ROWS,
)


def main() -> int:
    arguments = kept_lines.options("bench.scoreboard", __doc__, [row.id for row in ROWS])
    results: list[dict[str, Any]] = []
    if not arguments.page:
        results = try_rows([row for row in ROWS if row.id in arguments.only])
    PAGE.write_text(page(kept_lines.read(RESULTS)))
    return 0 if all(result["ok"] for result in results) else 1


def try_rows(rows: list[Row]) -> list[dict[str, Any]]:
    """One after the other; each line is kept as soon as it is there."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was installed goes, too
    results = []
    installation = Installation.up()
    try:
        for row in rows:
            started, described = time.monotonic(), machine()
            result = line(row, tried(row, installation), described)
            kept_lines.keep(RESULTS, result)
            results.append(result)
            verdict = "ok" if result["ok"] else f"FAILS: {result['reason']}"
            print(f"{row.id:>4} {row.what}: {result['value']} {row.unit}, wanted {row.wanted}: {verdict}")
            print(f"     {time.monotonic() - started:.0f} s; {result['figures']}", flush=True)
    finally:
        installation.down()
    return results


def tried(row: Row, installation: Installation) -> Outcome:
    """A row that could not be tried to its end has failed, and the next one is tried all the same."""
    try:
        return row.measure(installation)
    except Exception as error:
        traceback.print_exc()
        return Outcome(None, ok=False, reason=f"not tried to the end: {(str(error).splitlines() or [repr(error)])[0]}")


def machine() -> dict[str, Any]:
    """What the rows are tried on, now."""
    return machine_now() | {"version": catalog.version(), "commit": commit()}


def commit() -> str:
    """The last one that changed the product; with a + where files differ from it."""
    product = ["--", "operator", "engine", "kernels", "charts", "images"]
    last = git("log", "-1", "--format=%h", "--abbrev=10", *product)
    return last + ("+" if git("status", "--porcelain", *product) else "")


def git(*arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
