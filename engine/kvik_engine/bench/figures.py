"""From what each request saw to the figures of a run, by the definitions of `vllm bench serve`. Pure.

TTFT: from sending a request to the first event with text. E2E: to the last event. TPOT: (E2E - TTFT) / (tokens - 1),
one value a request, of those with two tokens or more. ITL: each gap between two events with text, of all requests.
Percentiles interpolate linearly. Rates divide by the time from the first request sent to the end of the last one.
Requests that failed are counted by kind. No other figure knows them, but for the time that rates divide by: it is of
all requests.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Answer:
    """One request that was answered whole. Times are seconds on one clock."""

    sent_at: float
    first_at: float
    """Of the first event with text."""
    ended_at: float
    gaps: tuple[float, ...]
    """Between consecutive events with text, in seconds."""
    output_tokens: int
    prompt_tokens: int | None
    """None: the server did not say."""
    tokens_from_usage: bool = True
    """False: the server did not say, and each event counts as a token."""
    text: str = ""

    @property
    def ttft(self) -> float:
        return self.first_at - self.sent_at

    @property
    def e2e(self) -> float:
        return self.ended_at - self.sent_at

    @property
    def tpot(self) -> float | None:
        """None with less than two tokens."""
        return (self.e2e - self.ttft) / (self.output_tokens - 1) if self.output_tokens > 1 else None


@dataclass(frozen=True, slots=True)
class Failure:
    """One request that was not: `kind` is one of few words, `message` what exactly was said."""

    kind: str
    message: str
    sent_at: float
    ended_at: float


Result = Answer | Failure


@dataclass(frozen=True, slots=True)
class Slo:
    """Bounds in seconds; None is no bound."""

    ttft: float | None = None
    tpot: float | None = None

    @property
    def given(self) -> bool:
        return self.ttft is not None or self.tpot is not None

    def met(self, answer: Answer) -> bool:
        """A request of one token has no time per token to be too long."""
        in_time = self.ttft is None or answer.ttft <= self.ttft
        return in_time and (self.tpot is None or (answer.tpot or 0.0) <= self.tpot)


@dataclass(frozen=True, slots=True)
class Spread:
    """Of some values in seconds."""

    mean: float
    p50: float
    p90: float
    p99: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread | None:
        """None of no values."""
        if not values:
            return None
        ordered = sorted(values)
        return cls(math.fsum(ordered) / len(ordered), *(percentile(ordered, p) for p in (0.5, 0.9, 0.99)))


@dataclass(frozen=True, slots=True)
class Figures:
    """A whole run. Rates are per second."""

    seconds: float
    completed: int
    failed: Mapping[str, int]
    """Requests by kind of failure."""
    examples: Mapping[str, str]
    """A message for each kind."""
    output_tokens: int
    prompt_tokens: int | None
    """None: the server did not say."""
    goodput: float | None
    """Requests that met every bound; None without one."""
    ttft: Spread | None
    tpot: Spread | None
    itl: Spread | None
    e2e: Spread | None

    tokens_from_usage: bool
    """False: of an answer at least, events were counted."""

    @property
    def requests_per_second(self) -> float:
        return self.completed / self.seconds

    @property
    def output_tokens_per_second(self) -> float:
        return self.output_tokens / self.seconds

    @property
    def total_tokens_per_second(self) -> float | None:
        return None if self.prompt_tokens is None else (self.prompt_tokens + self.output_tokens) / self.seconds


@dataclass(frozen=True, slots=True)
class Latencies:
    """All values of a run, in seconds: of requests that were answered, and of the gaps between their events."""

    ttft: Sequence[float]
    tpot: Sequence[float]
    itl: Sequence[float]
    e2e: Sequence[float]

    @classmethod
    def of(cls, answers: Sequence[Answer]) -> Latencies:
        return cls(
            ttft=[answer.ttft for answer in answers],
            tpot=[answer.tpot for answer in answers if answer.tpot is not None],
            itl=[gap for answer in answers for gap in answer.gaps],
            e2e=[answer.e2e for answer in answers],
        )


def figures(results: Sequence[Result], slo: Slo) -> Figures:
    """`results` must not be empty."""
    answers = answered(results)
    failures = [result for result in results if isinstance(result, Failure)]
    seconds = max(result.ended_at for result in results) - min(result.sent_at for result in results)
    seconds = max(seconds, 1e-9)  # where nothing was even sent
    prompts = [answer.prompt_tokens for answer in answers]
    values = Latencies.of(answers)
    return Figures(
        seconds=seconds,
        completed=len(answers),
        failed=dict(Counter(failure.kind for failure in failures)),
        examples={failure.kind: failure.message for failure in reversed(failures)},
        output_tokens=sum(answer.output_tokens for answer in answers),
        prompt_tokens=None if None in prompts else sum(tokens for tokens in prompts if tokens is not None),
        goodput=sum(map(slo.met, answers)) / seconds if slo.given else None,
        ttft=Spread.of(values.ttft),
        tpot=Spread.of(values.tpot),
        itl=Spread.of(values.itl),
        e2e=Spread.of(values.e2e),
        tokens_from_usage=all(answer.tokens_from_usage for answer in answers),
    )


def answered(results: Sequence[Result]) -> list[Answer]:
    return [result for result in results if isinstance(result, Answer)]


def percentile(ordered: Sequence[float], fraction: float) -> float:
    """Linear interpolation between the closest ranks, as numpy does it. `ordered` ascends and is not empty."""
    rank = fraction * (len(ordered) - 1)
    below = math.floor(rank)
    above = min(below + 1, len(ordered) - 1)
    low, high = ordered[below], ordered[above]
    return min(high, low + (high - low) * (rank - below))
