"""JSON lines that are kept of what was measured: one for each thing that was tried, the latest."""

import argparse
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


def options(module: str, about: str | None, ids: Sequence[str]) -> argparse.Namespace:
    """Of a program that tries things and makes a page of the lines: `only`, which of `ids`, and whether just the `page`
    is to be made."""
    parser = argparse.ArgumentParser(prog=module, description=about)
    parser.add_argument("--only", nargs="+", metavar="ID", choices=ids, default=ids, help=", ".join(ids))
    parser.add_argument("--page", action="store_true", help="write the page from the lines that are there, try nothing")
    return parser.parse_args()
