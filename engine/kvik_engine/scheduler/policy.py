"""In which order waiting requests are considered: class, tenant, priority, turn, and nobody starves.

Order: a request for which others were preempted just now, requests pinned by repeated preemption, then a long waiting
request whose turn by age has come, then the best of the lowest class number: of its least served tenant, by priority
and turn (which is the arrival, later for long prompts).

Within one class the oldest request that waited AGING_SECONDS gets such a turn, once per AGING_SECONDS, so a backlog
cannot push out a better class. It is tried first, and others pass it while it does not fit: its own class for
BLOCKING_SECONDS, better classes for ten times as long. Then they wait for it, so that even a large request gets the
room it needs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kvik_engine.request import Life, Request
from kvik_engine.scheduler.class_queue import ClassQueue
from kvik_engine.scheduler.fairness import ServiceCounters

SLO_CLASSES = (0, 1, 2)
"""Interactive, balanced, batch."""
AGING_SECONDS = 10.0
BLOCKING_SECONDS = 60.0
_STALE_KEPT = 64


def rank(request: Request) -> tuple[int, int, float, int, int]:
    """Sort key of one tenant's requests: class, priority, turn, then the key, so that no two are equal."""
    return (request.slo_class, request.priority, request.turn, *request.key)


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
    """All waiting requests, by class. Entries of requests that no longer wait are dropped when they are met."""

    def __init__(self, pin_after: int, served: ServiceCounters) -> None:
        self._pin_after = pin_after
        self._promised: Request | None = None
        self._pinned: list[Request] = []
        self._classes = {slo_class: ClassQueue(slo_class, served, self._is_current) for slo_class in SLO_CLASSES}
        self._waiting: set[Request] = set()
        self._stale = 0

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def prompt_tokens(self) -> int:
        """Prompt tokens to compute of all waiting requests."""
        return sum(own.prompt_tokens for own in self._classes.values())

    def of_class(self, slo_class: int) -> ClassQueue:
        """The waiting requests of one class. Only to be read."""
        return self._classes[slo_class]

    def add(self, request: Request) -> None:
        """A new request, or one that was preempted: that one keeps its arrival and so its place."""
        assert request.life is Life.WAITING
        assert request not in self._waiting
        self._waiting.add(request)
        own = self._classes[request.slo_class]
        own.joins(request)
        if request.preemptions >= self._pin_after:
            self._pinned.append(request)
        else:
            own.enqueue(request)

    def remove(self, request: Request) -> None:
        """The request was admitted or ended. Fine if it does not wait."""
        if request not in self._waiting:
            return
        self._waiting.remove(request)
        if request is self._promised:
            self._promised = None
        self._classes[request.slo_class].leaves(request)
        if request in self._pinned:
            self._pinned.remove(request)
            return
        self._stale += 1
        if not self._waiting or self._stale > len(self._waiting) + _STALE_KEPT:
            for own in self._classes.values():
                own.compact()
            self._stale = 0

    def promise(self, request: Request) -> None:
        """Others were preempted for this waiting request: nobody else may take their room."""
        self._promised = request

    def took_aged_turn(self, slo_class: int, now: float) -> None:
        """A request of this class was admitted for its age."""
        self._classes[slo_class].aged_turn_at = now

    def candidates(self, now: float) -> Iterator[Candidate]:
        """Requests to try now, in order. Take out what was admitted (`remove`) and start over."""
        if self._promised is not None:
            yield Candidate(self._promised, blocks_from=SLO_CLASSES[0], urgent=True)
            return
        for request in self._pinned:
            yield Candidate(request, blocks_from=SLO_CLASSES[0], urgent=True)
            return
        for slo_class, own in self._classes.items():
            oldest = own.oldest()
            if oldest is None:
                continue
            due_since = AGING_SECONDS + max(oldest.arrival, own.aged_turn_at or oldest.arrival)
            if now >= due_since:
                yield Candidate(oldest, _blocks_from(slo_class, now - due_since), urgent=True, aged=True)
        for own in self._classes.values():
            best = own.best()
            if best is not None:
                yield Candidate(best, blocks_from=SLO_CLASSES[0])
                return

    def _is_current(self, request: Request) -> bool:
        return request in self._waiting and request.preemptions < self._pin_after


def _blocks_from(slo_class: int, due_seconds: float) -> int | None:
    """Which classes wait for a request of `slo_class` whose turn by age has been due for so long."""
    if due_seconds < BLOCKING_SECONDS:
        return None
    return slo_class if due_seconds < 10 * BLOCKING_SECONDS else SLO_CLASSES[0]
