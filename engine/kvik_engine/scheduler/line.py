"""Who goes next: which waiting request starts in a step, who gives way to it, what the head leaves to those before it.

Running and waiting requests stand in one line. Nothing is planned here.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

from kvik_engine.request import Request
from kvik_engine.scheduler import shares
from kvik_engine.scheduler.batching import Batching
from kvik_engine.scheduler.making_room import make_way
from kvik_engine.scheduler.plan_builder import PlanBuilder
from kvik_engine.scheduler.policy import SLO_CLASSES, Candidate, rank
from kvik_engine.scheduler.room import Room
from kvik_engine.scheduler.state import State


class Line:
    """Looks at the scheduler's state, and changes it only by preemption, for one that waits."""

    def __init__(self, state: State, batching: Batching, room: Room) -> None:
        self._state = state
        self._batching = batching
        self._room = room

    def rank(self, request: Request) -> tuple[float, ...]:
        """Whose prompt is computed first, waiting or running: as in the queue, by what its tenant was served by now."""
        return (request.slo_class, self._state.served.served(request.slo_class, request.tenant), *rank(request)[1:])

    def next_admission(self, step: PlanBuilder, slo_class: int, before: Request | None) -> Candidate | None:
        for candidate in self._state.waiting.candidates(step.now):
            request = candidate.request
            if step.closed_from is not None and request.slo_class >= step.closed_from:
                continue
            if not candidate.urgent and (
                request.slo_class > slo_class or (before is not None and self.rank(request) > self.rank(before))
            ):
                return None
            if request in step.unstartable:
                continue
            if not self._in_flight_of(request) and self._can_start(step, request):
                return candidate
            step.unstartable.add(request)
            if (closed := candidate.blocks_from) is not None:
                step.closed_from = closed if step.closed_from is None else min(closed, step.closed_from)
        return None

    def make_room(self, step: PlanBuilder) -> bool:
        """Preempt requests of a lower class when the next waiting one lacks rows or blocks. Returns whether any was.

        Before anything is planned, so that no victim has work in this step.
        """
        if not self._state.waiting or not self._batching.open_to_more():
            return False
        for candidate in self._state.waiting.candidates(step.now):
            if self._in_flight_of(candidate.request) or self._can_start(step, candidate.request):
                return False
            if make_way(self._state, step, candidate.request, partial(self._can_start, step, candidate.request)):
                return True
            step.unstartable.add(candidate.request)
            if candidate.blocks_from == SLO_CLASSES[0]:
                return False
        return False

    def kept_before(self, step: PlanBuilder, head: Request) -> int:
        """Prefill tokens that the head leaves to prompts which rank before it and can be computed now.

        Of its own class those are running ones and, of those that wait, shorter ones: half of the share at most.
        Where a better class has come, which no running request has, the head gets what batch prompts would.
        """
        before = self.rank(head)
        tokens = sum(branch.todo for branch in step.prompts[head.slo_class] if self.rank(branch.request) < before)
        most = step.prefill_left // 2
        next_one = self._next_before(step, head)
        if next_one is not None:
            better = [self._state.waiting.of_class(c).prompt_tokens for c in SLO_CLASSES if c < head.slo_class]
            tokens += sum(better) + self._state.waiting.of_class(head.slo_class).tokens_below(head.tier)
            if next_one.slo_class < head.slo_class:
                most = step.prefill_left - shares.prefill_share(step.prefill_left)
        return min(most, tokens)

    def _next_before(self, step: PlanBuilder, head: Request) -> Request | None:
        """The waiting request that is admitted in this step and goes before the head, by class or for its length."""
        if not self._state.waiting or not self._batching.open_to_more():
            return None
        candidate = self.next_admission(step, head.slo_class, head)
        if candidate is None:
            return None
        request = candidate.request
        return request if (request.slo_class, request.tier) < (head.slo_class, head.tier) else None

    def _can_start(
        self,
        step: PlanBuilder,
        request: Request,
        *,
        more_rows: int = 0,
        more_blocks: int = 0,
        without: Collection[Request] = (),
    ) -> bool:
        """Whether a waiting request gets its rows and blocks now, or would with some more of them and `without` some
        of the running requests."""
        if len(request.live) > self._state.rows.free + more_rows:
            return False
        hit = self._state.kv.find(request.live[0])
        return self._room.has_room(
            request,
            self._state.kv,
            running=[other for other in self._state.running if other not in without]
            if without
            else self._state.running,
            hit=hit,
            owed=sum(step.owed.values()) - sum(step.owed.get(victim, 0) for victim in without),
            more_blocks=more_blocks,
            pool_was_full=self._state.full_from is not None and request.slo_class >= self._state.full_from,
        )

    def _in_flight_of(self, request: Request) -> bool:
        return any(self._state.kv.in_flight(branch) for branch in request.branches)
