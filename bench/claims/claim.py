"""What a claim is, what measuring it gives, and the line that is kept of it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Measured:
    """Baseline and ours out of the same run. `ratio` is how many times better ours is, whatever better means."""

    baseline: float
    ours: float
    ratio: float
    ok: bool
    reason: str | None = None
    """Why not, when not ok."""
    figures: dict[str, float] = field(default_factory=dict)
    """More of what was seen, by what it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One sentence that users are told, and how it is tried."""

    id: str
    what: str
    baseline: str
    """What stands against ours."""
    unit: str
    """Of both values."""
    wanted: str
    concurrency: str
    prompt_tokens: str
    output_tokens: str
    clock: str
    """What seconds are, or how things are counted."""
    measure: Callable[[], Measured]


CPU_CLOCK = "CPU seconds of the engine's one computing thread, so that other work on the machine does not count"
COUNTED = "counted, not timed"
WALL_CLOCK = "seconds at an HTTP client on the same machine"


def line(claim: Claim, measured: Measured, machine: dict[str, Any]) -> dict[str, Any]:
    """The claim's line in the results."""
    return {
        "id": claim.id,
        "what": claim.what,
        "baseline_is": claim.baseline,
        "baseline": _rounded(measured.baseline),
        "ours": _rounded(measured.ours),
        "unit": claim.unit,
        "ratio": _rounded(measured.ratio),
        "wanted": claim.wanted,
        "ok": measured.ok,
        "reason": measured.reason,
        "figures": {name: _rounded(value) for name, value in measured.figures.items()},
        "concurrency": claim.concurrency,
        "prompt_tokens": claim.prompt_tokens,
        "output_tokens": claim.output_tokens,
        "clock": claim.clock,
        "machine": machine,
    }


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")
