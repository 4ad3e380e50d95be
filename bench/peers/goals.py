"""What Kvik should reach beside other servers, as ratios of one run, and whether it did. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

Line = Mapping[str, Any]
"""One server under one load: `server`, `under`, and what `kvik bench --json` says of a run."""

OURS: Final = "kvik bf16"
OURS_INT8: Final = "kvik int8"
LLAMA_BF16, LLAMA_Q4_0, LLAMA_Q8_0 = LLAMA = ("llama.cpp BF16", "llama.cpp Q4_0", "llama.cpp Q8_0")
VLLM: Final = "vllm"


@dataclass(frozen=True, slots=True)
class Figure:
    """How it is read from a line; None where no request of the line has one."""

    name: str
    of: Callable[[Line], float | None]
    more_is_better: bool


def _median(key: str) -> Callable[[Line], float | None]:
    def of(line: Line) -> float | None:
        spread = line[key]
        return None if spread is None else float(spread["p50"])

    return of


TPOT: Final = Figure("TPOT P50, ms", _median("tpot_ms"), more_is_better=False)
TTFT: Final = Figure("TTFT P50, ms", _median("ttft_ms"), more_is_better=False)
TOKENS: Final = Figure("output tokens/s", lambda line: float(line["output_tokens_per_second"]), more_is_better=True)


@dataclass(frozen=True, slots=True)
class Goal:
    """The figure of `ours` over that of the best of `peers` is `bound` at most; at least, where more is better."""

    under: str
    figure: Figure
    peers: tuple[str, ...]
    bound: float
    ours: str = OURS

    @property
    def wanted(self) -> str:
        return f"{self.bound:g} or {'more' if self.figure.more_is_better else 'less'}"

    def kept(self, ratio: float) -> bool:
        return ratio >= self.bound if self.figure.more_is_better else ratio <= self.bound


GOALS: Final = (
    Goal("1 client", TPOT, (VLLM,), 0.5),
    Goal("1 client", TPOT, (LLAMA_BF16,), 1.2),
    Goal("1 client", TPOT, (LLAMA_Q4_0,), 1.3, OURS_INT8),
    Goal("1 client", TTFT, (VLLM,), 1.0),
    Goal("8 clients", TOKENS, (VLLM, *LLAMA), 1.4),
    Goal("16 clients", TOKENS, (VLLM, *LLAMA), 1.5),
    Goal("16 clients", TTFT, (VLLM,), 1.0),
)


class Verdict(Enum):
    REACHED = "ok"
    MISSED = "MISSED"
    NO_WIN = "no win: requests failed"
    """The bound is kept beside a figure to which the peer's failed requests do not belong."""
    NOT_MEASURED = "not measured"


@dataclass(frozen=True, slots=True)
class Judged:
    """`against` is the best of the peers that were there; figures are None where there are none."""

    goal: Goal
    against: str | None
    ours: float | None
    theirs: float | None
    ratio: float | None
    verdict: Verdict


def judged(lines: Sequence[Line], goals: Sequence[Goal] = GOALS) -> Iterator[Judged]:
    """A request of ours that failed misses the goal, whatever the others took."""
    by_place = {(line["server"], line["under"]): line for line in lines}
    for goal in goals:
        ours = by_place.get((goal.ours, goal.under))
        peers = [line for peer in goal.peers if (line := by_place.get((peer, goal.under))) is not None]
        yield _judged(goal, ours, peers)


def _judged(goal: Goal, ours: Line | None, peers: Sequence[Line]) -> Judged:
    mine = None if ours is None else goal.figure.of(ours)
    told = [(value, line) for line in peers if (value := goal.figure.of(line))]
    if ours is None or not told:
        return Judged(goal, None, mine, None, None, Verdict.NOT_MEASURED)
    sign = -1 if goal.figure.more_is_better else 1
    theirs, best = min(told, key=lambda pair: sign * pair[0])
    ratio = None if mine is None else mine / theirs
    if ratio is None or ours["failed"] or not goal.kept(ratio):
        verdict = Verdict.MISSED
    else:
        verdict = Verdict.NO_WIN if best["failed"] else Verdict.REACHED
    return Judged(goal, str(best["server"]), mine, theirs, ratio, verdict)
