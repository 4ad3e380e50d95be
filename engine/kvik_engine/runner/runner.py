"""Execute step plans in order on one device. Implements step.Runner."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from kvik_engine.attention.backend import AttentionBackend, StepAttention
from kvik_engine.attention.kv_cache import KVCache
from kvik_engine.attention.kv_layout import KVFormats
from kvik_engine.models.kv_groups import kv_layout
from kvik_engine.models.registry import Model
from kvik_engine.runner.dtypes import DTYPES
from kvik_engine.runner.inputs import SamplingInputs, gather_inputs
from kvik_engine.runner.results import PendingResult
from kvik_engine.runner.rows import RowTable
from kvik_engine.runner.swap import HostMemory
from kvik_engine.sampling.sampler import sample
from kvik_engine.step import HostSpace, ModelFacts, StepPlan, StepResult


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerLimits:
    """How large the rows and the blocks are."""

    max_requests: int
    """Rows."""
    max_tokens: int
    """Tokens of a row at most: the served context."""
    block_tokens: int


class Forward(Protocol):
    """How the hidden states of a step are computed."""

    def __call__(self, token_ids: Tensor, positions: Tensor, attention: StepAttention) -> Tensor:
        """See models.registry.Model.forward; the next call may take the memory of the result."""
        ...


class ModelRunner:
    """See step.Runner. Steps run in the order of `launch`; on a CPU they run inside it."""

    def __init__(
        self,
        model: Model,
        backend: AttentionBackend,
        limits: RunnerLimits,
        facts: ModelFacts,
        forward: Forward | None = None,
    ) -> None:
        """`forward`: the model's own when None."""
        self._model = model
        self._forward = forward or model.forward
        self._backend = backend
        self._limits = limits
        self._facts = facts
        self._device = torch.device(facts.device)
        self._cache: KVCache | None = None
        self._rows: RowTable | None = None
        self._host: HostMemory | None = None
        self._pending: deque[PendingResult] = deque()

    @property
    def facts(self) -> ModelFacts:
        return self._facts

    def allocate(self, blocks: int) -> int:
        limits = self._limits
        formats = KVFormats.of(self._facts.dtype, self._facts.kv_key_dtype, self._facts.kv_value_dtype)
        layout = kv_layout(self._model.config, limits.block_tokens, formats)
        self._cache = KVCache(blocks=blocks, layout=layout, dtype=DTYPES[self._facts.dtype], device=self._device)
        # Where no layer sees all of the past, a row may be longer than the pool.
        most = min(limits.max_tokens, blocks * limits.block_tokens) if None in layout.windows else limits.max_tokens
        self._rows = RowTable(
            rows=limits.max_requests,
            max_tokens=most + 1,
            block_tokens=limits.block_tokens,
            groups=len(layout.windows),
            device=self._device,
        )
        return self._cache.bytes

    def allocate_host(self, slots: int) -> HostSpace:
        assert self._cache is not None, "allocate comes first"
        self._host = HostMemory(self._cache.regions, slots)
        return self._host.measure()

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> None:
        assert self._cache is not None, "allocate comes first"
        assert self._rows is not None
        pending = PendingResult(plan.step, self._device, time.perf_counter())
        self._settle_rows(plan, self._rows)
        self._move_blocks(plan, self._cache)
        if plan.work:
            self._run(plan, self._cache, self._rows, pending)
        pending.launched()
        self._pending.append(pending)

    def collect(self) -> StepResult:
        return self._pending.popleft().wait()

    def _move_blocks(self, plan: StepPlan, cache: KVCache) -> None:
        if plan.swap_outs:
            assert self._host is not None, "allocate_host comes first"
            self._host.swap_out(plan.swap_outs)
        if plan.copies:
            pairs = torch.tensor([(copy.source, copy.target) for copy in plan.copies]).to(self._device)
            cache.copy_blocks(pairs[:, 0], pairs[:, 1])
        if plan.swap_ins:
            assert self._host is not None, "allocate_host comes first"
            self._host.swap_in(plan.swap_ins)

    def _settle_rows(self, plan: StepPlan, rows: RowTable) -> None:
        for row in plan.ended:
            rows.end(row)
        for start in plan.started:
            rows.start(start)
        for split in plan.splits:
            rows.fork(split)
        rows.set_tokens(plan.chosen)
        for fork in plan.forks:
            rows.fork(fork)
        rows.append_blocks(plan.work)
        rows.change_tables(plan.changes)

    def _run(self, plan: StepPlan, cache: KVCache, rows: RowTable, pending: PendingResult) -> None:
        inputs = gather_inputs(plan.work, rows, cache.layout.windows)
        attention = StepAttention(self._backend, inputs.attention, cache)
        hidden = self._forward(inputs.token_ids, inputs.positions, attention)
        if inputs.sampling is not None:
            self._sample(hidden, inputs.sampling, rows, pending)

    def _sample(self, hidden: torch.Tensor, inputs: SamplingInputs, rows: RowTable, pending: PendingResult) -> None:
        if inputs.last_tokens is not None:
            hidden = hidden.index_select(0, inputs.last_tokens)
        logits = self._model.logits(hidden)
        if inputs.source is not None:
            logits = logits.index_select(0, inputs.source)
        samples = sample(logits, inputs.batch)
        rows.append_tokens(inputs.places, samples.tokens)
        pending.sampled(inputs.rows, inputs.batch.rows, samples)
