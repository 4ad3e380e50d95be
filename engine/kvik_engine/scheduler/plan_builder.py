"""Collects one step while it is planned, and remembers what settling it must know."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kvik_engine.kv.manager import Prepared, Tables
from kvik_engine.request import Branch, Request
from kvik_engine.scheduler.rows import RowChanges
from kvik_engine.step import BlockCopy, Row, RowFork, RowStart, RowWork, StepPlan, SwapIn, SwapOut, TableChange


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """A step that is launched and not settled."""

    step: int
    work: tuple[RowWork, ...]
    branches: tuple[tuple[Branch, ...], ...]
    """Of each work: the one that computes, then the forks that start from it. If it samples, all of them do. A
    preempted branch is not started again before the step is settled."""
    prefill_tokens: int
    full_of_prefill: bool
    """The device was kept busy with them (PlanBuilder.full_chunk)."""


@dataclass(slots=True)
class PlanBuilder:
    """One step in the making. Which branches may be scheduled is fixed at its beginning, so none is scheduled twice."""

    step: int
    now: float
    head: Request | None
    """The oldest request of the highest class: never a victim."""
    decodes: list[Branch]
    """Branches that compute one new output token, the head's first."""
    head_prompts: list[Branch]
    """Branches of the head with prompt or recomputation to do."""
    prompts: dict[int, list[Branch]]
    """The same of the other running requests by class, in rank order."""
    interactive_first: bool
    """An interactive request waits or computes its prompt."""
    tokens_left: int
    """What is left of maxBatchTokens."""
    prefill_left: int
    """What is left of the prefills' share of it."""
    full_chunk: int
    """Prefill tokens that keep the device busy: a chunk, or what decoding rows leave of maxBatchTokens."""
    owed: dict[Request, int]
    """Blocks that admitted requests still need for their known tokens."""
    closed_from: int | None = None
    """Waiting requests of this class and worse are not tried any more."""
    unstartable: set[Request] = field(default_factory=set)
    """Waiting requests that found no rows or no room: both only shrink within a step."""
    scheduled: set[Request] = field(default_factory=set)
    prefill_tokens: int = 0
    _work: list[RowWork] = field(default_factory=list)
    _branches: list[tuple[Branch, ...]] = field(default_factory=list)
    _started: list[RowStart] = field(default_factory=list)
    _forks: list[RowFork] = field(default_factory=list)
    _copies: list[BlockCopy] = field(default_factory=list)
    _changes: list[TableChange] = field(default_factory=list)

    @property
    def empty(self) -> bool:
        return not self._work

    def owed_to_others(self, request: Request) -> int:
        """Blocks kept for prompts admitted before; the head need not care."""
        return 0 if request is self.head else sum(n for other, n in self.owed.items() if other is not request)

    def start(self, branch: Branch, tables: Tables, copies: Sequence[BlockCopy] = ()) -> None:
        """The branch takes its row with all tokens the host knows. `copies` fill blocks of its tables."""
        request = branch.request
        self._copies.extend(copies)
        self._started.append(
            RowStart(_row(branch), tuple(branch.tokens), request.prompt_length, branch.choice, request.params, tables)
        )

    def fork(self, source: Branch, target: Branch, tables: Tables) -> None:
        self._forks.append(RowFork(_row(target), _row(source), target.choice, tables))

    def work(self, branch: Branch, upto: int, prepared: Prepared, *, forks: Sequence[Branch], samples: bool) -> None:
        """`branch` computes its tokens up to `upto`; with `samples`, it and its fresh `forks` sample the next one."""
        row, start, branches = branch.row, branch.scheduled, (branch, *forks)
        assert row is not None
        for target in branches:
            target.plan(upto, self.step, samples=samples)
        rows = tuple(map(_row, branches)) if forks else (row,) if samples else ()
        from_last_sample = start >= branch.row_tokens
        self._work.append(RowWork(row, start, upto - start, from_last_sample, prepared.new_blocks, rows))
        self._branches.append(branches)
        for own in prepared.copies:
            self._copies.append(own.copy)
            self._changes.append(TableChange(row, own.group, own.index, own.copy.target))
        self.scheduled.add(branch.request)
        self.tokens_left -= upto - start

    def plan(self, rows: RowChanges, swap_outs: tuple[SwapOut, ...], swap_ins: tuple[SwapIn, ...]) -> StepPlan:
        return StepPlan(
            step=self.step,
            work=tuple(self._work),
            ended=rows.ended,
            started=tuple(self._started),
            splits=rows.splits,
            chosen=rows.chosen,
            forks=tuple(self._forks),
            copies=tuple(self._copies),
            changes=tuple(self._changes),
            swap_outs=swap_outs,
            swap_ins=swap_ins,
        )

    def record(self) -> PlannedStep:
        full = self.prefill_tokens >= self.full_chunk > 0
        return PlannedStep(self.step, tuple(self._work), tuple(self._branches), self.prefill_tokens, full)


def _row(branch: Branch) -> Row:
    assert branch.row is not None
    return branch.row
