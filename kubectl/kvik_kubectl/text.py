"""How things are shown to people. Pure."""

import json
import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

from kvik_kubectl.revisions import Change

_LONGEST: Final = 80
"""Characters of one value."""


def change_line(change: Change) -> str:
    return f"{change.field}: {_value(change.before)} -> {_value(change.after)}"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns as kubectl shows them, with three spaces between."""
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    return [
        "   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (header, *rows)
    ]


def age(created: str, now: datetime) -> str:
    """As kubectl has it: 45s, 12m, 5h, 3d. `?` where the time cannot be read."""
    try:
        total = max(0, int((now - datetime.fromisoformat(created)).total_seconds()))
    except (ValueError, TypeError):
        return "?"
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if total >= 2 * length:
            return f"{total // length}{unit}"
    return f"{total}s"


def percent(fraction: float | None) -> str:
    """`-` where it is not known."""
    return "-" if fraction is None else f"{round(100 * fraction)}%"


def number(value: float | None) -> str:
    """`-` where it is not known."""
    return "-" if value is None else f"{value:.0f}"


def pods(count: int, kind: str = "") -> str:
    """`kind` with its space."""
    return f"{count} {kind}pod" if count == 1 else f"{count} {kind}pods"


def duration_seconds(text: str) -> float:
    """Of a duration as the API has it (GEP-2257): `1h30m`, `500ms`."""
    units = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
    return sum(int(count) * units[unit] for count, unit in re.findall(r"(\d+)(ms|h|m|s)", text))


def _value(value: Any) -> str:
    if value is None:
        return "none"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
