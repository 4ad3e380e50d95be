"""Who gives way when the pool is full, and how many tokens a request still has before it.

Victim: lowest class first, then the largest estimated remaining work, discounted by age. The head, which is the oldest
request of the highest class, never gives way to a running one, so something always finishes; a request that was
preempted PIN_AFTER times, or admitted for its age, gives way to the head alone.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Container, Iterable, Sequence
from operator import attrgetter

from kvik_engine.request import Request

PIN_AFTER = 3
_SAMPLES = 512
_AGE_SECONDS = 30.0
"""Remaining work counts half at this age, a third at twice this age, and so on."""


class OutputLengths:
    """The running P75 of how long answers were, over the last 512."""

    def __init__(self) -> None:
        self._lengths: deque[int] = deque(maxlen=_SAMPLES)
        self._p75: int | None = None

    def add(self, length: int) -> None:
        self._lengths.append(length)
        self._p75 = None

    @property
    def p75(self) -> int | None:
        """None before the first answer."""
        if self._p75 is None and self._lengths:
            self._p75 = sorted(self._lengths)[(3 * len(self._lengths)) // 4]
        return self._p75


_seniority = attrgetter("seniority")


def head_of(running: Iterable[Request]) -> Request | None:
    """The oldest request of the highest class."""
    return min(running, key=_seniority, default=None)


def remaining_work(request: Request, p75: int | None) -> int:
    """Estimated output tokens still to come: min(max_tokens, P75) less what is there, at least 1 a branch."""
    expected = request.params.max_tokens if p75 is None else min(request.params.max_tokens, p75)
    return sum(max(1, expected - (branch.known - request.prompt_length)) for branch in request.live)


def holds_on(request: Request) -> bool:
    """Whether a request gives way to the head alone: it was preempted too often, or waited so long to start."""
    return request.aged or request.preemptions >= PIN_AFTER


def choose_victim(
    running: Iterable[Request],
    *,
    needy: Request,
    head: Request | None,
    scheduled: Container[Request],
    p75: int | None,
    now: float,
) -> Request | None:
    """The request that gives way so that `needy` gets a block; `needy` itself when nobody is better; None = wait.

    A request with work in the step being planned is never a victim (vllm #23347, #49097).
    """
    candidates = [
        request
        for request in running
        if request is not head
        and request not in scheduled
        and request.slo_class >= needy.slo_class
        and (needy is head or not holds_on(request))
    ]
    return max(candidates, key=lambda request: _victim_key(request, p75, now), default=None)


def enough_victims(
    running: Iterable[Request],
    *,
    waiting: Request,
    enough: Callable[[Sequence[Request]], bool],
    p75: int | None,
    now: float,
) -> list[Request]:
    """The fewest requests of a lower class that must give way so that `waiting` starts; none when all are too few.

    `enough` must hold for more victims when it holds for fewer: it is asked for all of them first, then O(log n) times.
    The head of a lower class is not spared: the waiting request will be the head.
    """
    candidates = [request for request in running if request.slo_class > waiting.slo_class and not holds_on(request)]
    candidates.sort(key=lambda request: _victim_key(request, p75, now), reverse=True)
    if not candidates or not enough(candidates):
        return []
    fewest = 1 + bisect_left(range(1, len(candidates)), True, key=lambda count: enough(candidates[:count]))
    return candidates[:fewest]


def _victim_key(request: Request, p75: int | None, now: float) -> tuple[int, float, float, tuple[int, int]]:
    age = max(0.0, now - request.arrival)
    work = remaining_work(request, p75) / (1.0 + age / _AGE_SECONDS)
    return (request.slo_class, work, request.arrival, request.key)
