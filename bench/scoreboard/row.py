"""What a row of the scoreboard is, what trying it gives, and the line that is kept of it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from bench.scoreboard.installation import Installation


@dataclass(frozen=True, slots=True)
class Outcome:
    """`value` is in the row's unit, None if it was not seen; `reason` says why not, when not ok."""

    value: float | None
    ok: bool
    reason: str | None = None
    figures: dict[str, float] = field(default_factory=dict)
    """More of what was seen, by what it is."""
    only_slow: bool = False
    """Not ok, and a faster machine is all that it lacks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One promise about reliability, and how it is tried."""

    id: str
    what: str
    unit: str
    wanted: str
    how: str
    """What is done, for somebody who would do it again by hand."""
    measure: Callable[[Installation], Outcome]


def line(row: Row, outcome: Outcome, machine: dict[str, Any]) -> dict[str, Any]:
    """The row's line in the results."""
    return {
        "id": row.id,
        "what": row.what,
        "value": None if outcome.value is None else round(outcome.value, 2),
        "unit": row.unit,
        "wanted": row.wanted,
        "ok": outcome.ok,
        "reason": outcome.reason,
        "figures": {name: round(value, 2) for name, value in outcome.figures.items()},
        "how": row.how,
        "machine": machine,
    }
