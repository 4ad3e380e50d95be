"""In which order waiting requests are considered: class, priority, arrival, and nobody starves.

Order: a request for which others were preempted just now, requests pinned by repeated preemption, then a long waiting
request whose turn has come, then the best of the lowest class number by priority and arrival.

Within one class the oldest request that waited AGING_SECONDS gets such a turn, once per AGING_SECONDS, so a backlog
cannot push out a better class. It is tried first, and others pass it while it does not fit: its own class for
BLOCKING_SECONDS, better classes for ten times as long. Then they wait for it, so that even a large request gets the
room it needs.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

from kvik_engine.request import Life, Request

SLO_CLASSES = (0, 1, 2)
"""Interactive, balanced, batch."""
AGING_SECONDS = 10.0
BLOCKING_SECONDS = 60.0
_STALE_KEPT = 64


def rank(request: Request) -> tuple[int, int, float, int, int]:
    """Sort key of running requests: class, priority, arrival, then the key, so that no two are equal."""
    return (request.slo_class, request.priority, request.arrival, *request.key)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A waiting request to try next.

    If it does not fit, requests of class `blocks_from` and worse may not be tried in this step (None: all may).
    `urgent` requests do not wait for the turn of their class within a step. `aged` ones use up a turn by age.
    """

    request: Request
    blocks_from: int | None
    urgent: bool = False
    aged: bool = False


class WaitingQueue:
    """All waiting requests. Entries of requests that no longer wait are dropped when they are met."""

    def __init__(self, pin_after: int) -> None:
        self._pin_after = pin_after
        self._order = count()
        self._promised: Request | None = None
        self._pinned: list[Request] = []
        self._heaps: dict[int, list[tuple[int, float, int, Request]]] = {slo_class: [] for slo_class in SLO_CLASSES}
        self._arrivals: dict[int, deque[Request]] = {slo_class: deque() for slo_class in SLO_CLASSES}
        self._aged_turn_at: dict[int, float] = {}
        self._waiting: set[Request] = set()
        self._stale = 0
        self._prompt_tokens = 0

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def prompt_tokens(self) -> int:
        """Prompt tokens of all waiting requests."""
        return self._prompt_tokens

    def add(self, request: Request) -> None:
        """A new request, or one that was preempted: that one keeps its arrival and so its place."""
        assert request.life is Life.WAITING
        assert request not in self._waiting
        self._waiting.add(request)
        self._prompt_tokens += request.prompt_length
        if request.preemptions >= self._pin_after:
            self._pinned.append(request)
            return
        entry = (request.priority, request.arrival, next(self._order), request)
        heapq.heappush(self._heaps[request.slo_class], entry)
        arrivals = self._arrivals[request.slo_class]
        if arrivals and arrivals[-1].arrival > request.arrival:
            insort(arrivals, request, key=lambda other: other.arrival)
        else:
            arrivals.append(request)

    def remove(self, request: Request) -> None:
        """The request was admitted or ended. Fine if it does not wait."""
        if request not in self._waiting:
            return
        self._waiting.remove(request)
        if request is self._promised:
            self._promised = None
        self._prompt_tokens -= request.prompt_length
        if request in self._pinned:
            self._pinned.remove(request)
            return
        self._stale += 1
        if self._stale > len(self._waiting) + _STALE_KEPT:
            self._compact()

    def promise(self, request: Request) -> None:
        """Others were preempted for this waiting request: nobody else may take their room."""
        self._promised = request

    def took_aged_turn(self, slo_class: int, now: float) -> None:
        """A request of this class was admitted for its age."""
        self._aged_turn_at[slo_class] = now

    def candidates(self, now: float) -> Iterator[Candidate]:
        """Requests to try now, in order. Take out what was admitted (`remove`) and start over."""
        if self._promised is not None:
            yield Candidate(self._promised, blocks_from=SLO_CLASSES[0], urgent=True)
            return
        for request in self._pinned:
            yield Candidate(request, blocks_from=SLO_CLASSES[0], urgent=True)
            return
        for slo_class in SLO_CLASSES:
            oldest = self._oldest(slo_class)
            if oldest is None:
                continue
            due_since = AGING_SECONDS + max(oldest.arrival, self._aged_turn_at.get(slo_class, oldest.arrival))
            if now >= due_since:
                yield Candidate(oldest, _blocks_from(slo_class, now - due_since), urgent=True, aged=True)
        for slo_class in SLO_CLASSES:
            best = self._best(slo_class)
            if best is not None:
                yield Candidate(best, blocks_from=SLO_CLASSES[0])
                return

    def _compact(self) -> None:
        """Drop all entries of requests that left, so that aborts behind a stuck request cannot pile up."""
        for slo_class, heap in self._heaps.items():
            self._heaps[slo_class] = [entry for entry in heap if self._is_current(entry[3])]
            heapq.heapify(self._heaps[slo_class])
            self._arrivals[slo_class] = deque(filter(self._is_current, self._arrivals[slo_class]))
        self._stale = 0

    def _best(self, slo_class: int) -> Request | None:
        heap = self._heaps[slo_class]
        while heap and not self._is_current(heap[0][3]):
            heapq.heappop(heap)
        return heap[0][3] if heap else None

    def _oldest(self, slo_class: int) -> Request | None:
        arrivals = self._arrivals[slo_class]
        while arrivals and not self._is_current(arrivals[0]):
            arrivals.popleft()
        return arrivals[0] if arrivals else None

    def _is_current(self, request: Request) -> bool:
        return request in self._waiting and request.preemptions < self._pin_after


def _blocks_from(slo_class: int, due_seconds: float) -> int | None:
    """Which classes wait for a request of `slo_class` whose turn by age has been due for so long."""
    if due_seconds < BLOCKING_SECONDS:
        return None
    return slo_class if due_seconds < 10 * BLOCKING_SECONDS else SLO_CLASSES[0]
