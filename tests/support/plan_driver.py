"""Drives a runner with hand-made step plans: continuous batching in its plainest form, without scheduler or KV manager.

Every request owns its blocks alone and gives them back at the end. It plans chunked prefill mixed with decode, a prefix
that another request left in the cache, preemption by recompute, and steps before the last one was collected.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from kvik_engine.params import SamplingParams
from kvik_engine.step import BlockId, Row, RowStart, RowWork, Runner, StepPlan

GREEDY = SamplingParams(max_tokens=1 << 20, seed=0, temperature=0.0)


@dataclass(slots=True)
class DrivenRequest:
    """One request; `outputs` and `samples` fill as steps are collected."""

    prompt: Sequence[int]
    max_tokens: int
    params: SamplingParams = GREEDY
    choice: int = 0
    preempt_after: int | None = None
    """Give up row and blocks once, when this many outputs are known, and recompute."""
    cached_blocks: Sequence[BlockId] = ()
    """Blocks that already hold the first tokens of the prompt; they stay the caller's."""
    outputs: list[int] = field(default_factory=list)
    row: Row | None = None
    started_with: int = 0
    scheduled: int = 0
    blocks: list[BlockId] = field(default_factory=list)
    planned_outputs: int = 0

    @property
    def last_planned(self) -> int:
        """Outputs to plan before it ends or is preempted."""
        return self.max_tokens if self.preempt_after is None else self.preempt_after

    @property
    def known(self) -> int:
        return len(self.prompt) + len(self.outputs)


class PlanDriver:
    """Runs requests to their max_tokens. `depth` steps may be launched beyond the last collected one."""

    def __init__(self, runner: Runner, *, rows: int, blocks: int, block_tokens: int) -> None:
        self._runner = runner
        self._free_rows = [Row(row) for row in reversed(range(rows))]
        self._free_blocks = deque(BlockId(block) for block in range(1, blocks + 1))
        self._block_tokens = block_tokens
        self._step = 0
        self._ended: list[Row] = []
        self._starts: list[RowStart] = []

    def run(self, requests: Sequence[DrivenRequest], *, chunk: int, budget: int = 1 << 20, depth: int = 0) -> None:
        """`chunk`: prompt tokens of one request a step at most; `budget`: tokens of a step."""
        waiting = deque(requests)
        running: list[DrivenRequest] = []
        in_flight: deque[dict[Row, DrivenRequest]] = deque()
        while waiting or running or in_flight:
            self._admit(waiting, running)
            works = self._plan(running, chunk, budget)
            if works:
                self._runner.launch(self._take_plan(works))
                by_row = {request.row: request for request in running if request.row is not None}
                in_flight.append({row: by_row[row] for work in works for row in work.sampled_rows})
            if len(in_flight) > (depth if works else 0):
                self._settle(in_flight.popleft(), waiting, running)
        if self._ended:
            self._runner.launch(self._take_plan([]))
            self._runner.collect()

    def take_blocks(self, tokens: int) -> list[BlockId]:
        """Blocks for a test's own use."""
        return [self._free_blocks.popleft() for _ in range(-(-tokens // self._block_tokens))]

    def _admit(self, waiting: deque[DrivenRequest], running: list[DrivenRequest]) -> None:
        while waiting and self._free_rows:
            request = waiting.popleft()
            request.row = self._free_rows.pop()
            request.started_with = request.known
            request.planned_outputs = len(request.outputs)
            request.scheduled = len(request.cached_blocks) * self._block_tokens
            request.blocks = list(request.cached_blocks)
            running.append(request)
            self._starts.append(
                RowStart(
                    row=request.row,
                    tokens=[*request.prompt, *request.outputs],
                    prompt_length=len(request.prompt),
                    choice=request.choice,
                    params=request.params,
                    blocks=(tuple(request.cached_blocks),),
                )
            )

    def _plan(self, running: list[DrivenRequest], chunk: int, budget: int) -> list[RowWork]:
        works = []
        for request in running:
            if request.planned_outputs >= request.last_planned or budget == 0:
                continue
            assert request.row is not None
            start = request.scheduled
            from_last_sample = start >= request.started_with
            length = 1 if from_last_sample else min(chunk, budget, request.started_with - start)
            request.scheduled += length
            budget -= length
            complete = request.scheduled >= request.started_with
            request.planned_outputs += complete
            new = self.take_blocks(request.scheduled - len(request.blocks) * self._block_tokens)
            request.blocks += new
            sampled = (request.row,) if complete else ()
            works.append(RowWork(request.row, start, length, from_last_sample, (tuple(new),), sampled))
        return works

    def _take_plan(self, works: list[RowWork]) -> StepPlan:
        plan = StepPlan(self._step, tuple(works), ended=tuple(self._ended), started=tuple(self._starts))
        self._step += 1
        self._ended, self._starts = [], []
        return plan

    def _settle(
        self, sampled: dict[Row, DrivenRequest], waiting: deque[DrivenRequest], running: list[DrivenRequest]
    ) -> None:
        for sample in self._runner.collect().samples:
            assert sample.error is None, sample.error
            request = sampled[sample.row]
            request.outputs.append(sample.token)
            if len(request.outputs) == request.max_tokens:
                self._release(request, running)
            elif len(request.outputs) == request.preempt_after:
                request.preempt_after = None
                self._release(request, running)
                waiting.append(request)

    def _release(self, request: DrivenRequest, running: list[DrivenRequest]) -> None:
        assert request.row is not None
        self._ended.append(request.row)
        self._free_rows.insert(0, request.row)
        self._free_blocks.extend(request.blocks[len(request.cached_blocks) :])
        request.row = None
        running.remove(request)
