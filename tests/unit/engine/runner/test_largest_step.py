"""What is kept free beside the KV cache is what the largest step takes where it takes most: far into a context."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kvik_engine.attention.backend import AttentionBatch, LayerAttention
from kvik_engine.attention.cpu_backend import CpuBackend
from kvik_engine.attention.kv_cache import KVCache
from kvik_engine.core.warm_up import warm_up
from kvik_engine.kv.sizing import size_cache
from kvik_engine.models.random_weights import RandomTensors
from kvik_engine.models.registry import build
from kvik_engine.params import SamplingParams
from kvik_engine.runner.largest_step import longest_context, measure_step
from kvik_engine.runner.load import make_runner
from kvik_engine.runner.runner import RunnerLimits
from kvik_engine.scheduler.limits import Limits
from kvik_engine.step import BlockId, GroupKind, KVGroup, Row, RowStart, RowWork, StepPlan
from tests.support.tiny_model import TINY

CPU = torch.device("cpu")
LIMITS = RunnerLimits(max_requests=2, max_tokens=256, block_tokens=16)
FULL = KVGroup(GroupKind.FULL, (0, 1), 16, 1000)
WINDOW = KVGroup(GroupKind.WINDOW, (2, 3), 16, 1000, 32)


@pytest.mark.parametrize(
    ("groups", "cache_bytes", "want"),
    [
        ((FULL,), 4000, 64),
        ((FULL,), 4999, 64),
        ((FULL,), 1 << 40, 256),
        ((FULL,), 0, 0),
        ((FULL,), -5000, 0),
        ((FULL, WINDOW), 4000, 64),
        ((FULL, FULL), 4000, 32),
        ((WINDOW,), 0, 256),
    ],
    ids=[
        "room",
        "whole blocks",
        "the model's",
        "none",
        "less than none",
        "windows apart",
        "two groups",
        "windows only",
    ],
)
def test_no_request_is_longer_than_the_cache_could_hold(
    groups: tuple[KVGroup, ...], cache_bytes: int, want: int
) -> None:
    assert longest_context(groups, LIMITS, cache_bytes) == want


class NotedBatches(CpuBackend):
    """Keeps where the rows began that attention was planned for."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, int]] = []

    def plan(self, batch: AttentionBatch, cache: KVCache) -> LayerAttention:  # type: ignore[override]
        self.batches.append((batch.starts[0], batch.lengths[0]))
        return super().plan(batch, cache)


@pytest.mark.parametrize(
    ("kv_cache_size", "want"),
    [(None, 192), (8 * 2 * 3 * 2 * 8 * 4 * 16, 64), (1, 0)],
    ids=["the whole context", "eight blocks", "no room"],
)
def test_memory_is_measured_as_deep_as_the_cache_will_reach_and_no_deeper(kv_cache_size: int | None, want: int) -> None:
    """A model of 128k tokens beside a cache of 4k would else be charged for steps that nobody can ask for."""
    backend = NotedBatches()
    make_runner(
        TINY,
        RandomTensors(0, dtype=torch.float32, device=CPU),
        dtype="fp32",
        backend=backend,
        limits=LIMITS,
        max_batch_tokens=64,
        kv_cache_size=kv_cache_size,
        progress=lambda _: None,
    )
    assert backend.batches == [(want, 64), (0, 64)]


def status(key: str) -> int:
    """Bytes, of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(key + ":"))


def growth(run: Callable[[], object]) -> int:
    """By how many bytes the process is larger at the worst moment of `run` than before it."""
    ctypes.CDLL(None).malloc_trim(0)
    before = status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    run()
    return status("VmHWM") - before


def test_neither_serving_nor_warming_up_takes_more_than_was_measured() -> None:
    """The mask of 256 tokens over a past of 65,536 takes 64 MiB: at the beginning of the context it takes nothing."""
    context, tokens = 1 << 16, 256
    limits = RunnerLimits(max_requests=2, max_tokens=context, block_tokens=16)
    config = replace(TINY, context_length=context)
    model = build(config, RandomTensors(0, dtype=torch.float32, device=CPU))

    def measure(depth: int) -> None:
        measure_step(
            model, CpuBackend(), limits, max_batch_tokens=tokens, context=depth, dtype=torch.float32, device=CPU
        )

    measure(0)
    at_the_beginning, measured = growth(lambda: measure(0)), growth(lambda: measure(context))
    assert measured > at_the_beginning + (64 << 20)

    runner = make_runner(
        config,
        RandomTensors(0, dtype=torch.float32, device=CPU),
        dtype="fp32",
        backend=CpuBackend(),
        limits=limits,
        max_batch_tokens=tokens,
        progress=lambda _: None,
    )
    blocks = context // 16
    ledger = size_cache(
        runner.facts.groups,
        model_context=context,
        context_limit=None,
        kv_cache_size=(blocks + 1) * runner.facts.groups[0].block_bytes,
        memory_fraction=1.0,
        device_bytes_total=1 << 40,
        device_bytes_used=0,
        step_tokens=tokens,
    )
    runner.allocate(ledger.blocks)
    table = tuple(BlockId(1 + block) for block in range(blocks))
    start = RowStart(Row(0), [0] * context, context, 0, SamplingParams(max_tokens=1, seed=0), (table,))
    work = RowWork(Row(0), context - tokens, tokens, False, ((),), (Row(0),))

    def serve() -> None:
        runner.launch(StepPlan(0, (work,), started=(start,)))
        runner.collect()
        runner.launch(StepPlan(1, (), ended=(Row(0),)))
        runner.collect()

    serve()
    slack = 8 << 20
    assert growth(serve) < measured + slack
    steps = Limits(max_requests=2, max_batch_tokens=tokens, chunked_prefill_tokens=tokens)
    assert growth(lambda: warm_up(runner, steps, ledger)) < measured + slack
