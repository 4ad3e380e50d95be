"""Taking rows and blocks from running requests: for one that runs and needs blocks, or for a better one that waits."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Protocol

from kvik_engine.request import Life, Request
from kvik_engine.scheduler.plan_builder import PlanBuilder
from kvik_engine.scheduler.preemption import choose_victim, enough_victims
from kvik_engine.scheduler.state import State


class CanStart(Protocol):
    """Whether a certain waiting request starts with so many rows and blocks beside those that are available, once the
    requests `without` do not run any more and so need no blocks."""

    def __call__(self, *, more_rows: int, more_blocks: int, without: Collection[Request]) -> bool: ...


def get_blocks(state: State, step: PlanBuilder, needy: Request, missing: Callable[[], int]) -> bool:
    """Make `missing()` blocks available, by preemption if need be. False: wait, or `needy` itself gave way.

    Blocks of a victim that a planned step still works on come back when that is settled: wait, and preempt no more.
    """
    kv = state.kv
    while (lacking := missing()) and lacking + step.owed_to_others(needy) > kv.pool.available:
        if lacking + step.owed_to_others(needy) <= kv.pool.available + kv.returning:
            return False
        victim = choose_victim(
            state.running,
            needy=needy,
            head=step.head,
            scheduled=step.scheduled,
            p75=state.lengths.p75,
            now=step.now,
        )
        if victim is None:
            return False
        _preempt(state, step, victim)
        _note_full(state, victim)
        if victim is needy:
            return False
    return True


def make_way(state: State, step: PlanBuilder, waiting: Request, can_start: CanStart) -> bool:
    """Preempt requests of a lower class if that lets `waiting` start. Returns whether any was."""

    def enough(victims: Sequence[Request]) -> bool:
        kv = state.kv
        branches = [branch for victim in victims for branch in victim.live]
        starts_with = partial(can_start, more_rows=len(branches), without=victims)
        if not starts_with(more_blocks=kv.returning + sum(map(kv.held, branches))):
            return False  # asked at every step while it waits, and counting who shares which block takes long
        return starts_with(more_blocks=kv.returning + kv.reclaimable(branches))

    victims = enough_victims(state.running, waiting=waiting, enough=enough, p75=state.lengths.p75, now=step.now)
    for victim in victims:
        _preempt(state, step, victim)
    if victims:
        state.waiting.promise(waiting)
    return bool(victims)


def _preempt(state: State, step: PlanBuilder, victim: Request) -> None:
    """Take rows and blocks from a request; it keeps its tokens. Their KV is kept elsewhere or computed again."""
    state.counters.swaps += state.offload.give_way(victim, step.step)
    for branch in victim.live:
        state.kv.release(branch)
        state.rows.give_back(branch)
        if branch.life is not Life.WAITING:
            branch.preempt()
    state.running.remove(victim)
    victim.preempt()
    state.waiting.add(victim)
    step.owed.pop(victim, None)
    state.counters.preemptions += 1


def _note_full(state: State, victim: Request) -> None:
    """Until a request ends, nothing of the victim's class or below starts unless all of it surely fits."""
    state.full_from = victim.slo_class if state.full_from is None else min(state.full_from, victim.slo_class)
