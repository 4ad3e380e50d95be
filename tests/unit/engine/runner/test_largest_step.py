"""What is kept free beside the KV cache is what the largest step takes where it takes most: far into a context."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.autograd.profiler import profile

from kvik_engine.attention.backend import AttentionBatch, LayerAttention
from kvik_engine.attention.cpu_backend import CpuBackend
from kvik_engine.attention.kv_cache import KVCache
from kvik_engine.attention.kv_layout import KVFormats
from kvik_engine.core.warm_up import warm_up
from kvik_engine.kv.sizing import Ledger, size_cache
from kvik_engine.models.config import ModelConfig
from kvik_engine.models.random_weights import RandomTensors
from kvik_engine.models.registry import build
from kvik_engine.params import SamplingParams
from kvik_engine.runner.largest_step import CacheBounds, longest_context, measure_step
from kvik_engine.runner.load import make_runner
from kvik_engine.runner.memory import MemoryUse
from kvik_engine.runner.runner import ModelRunner, RunnerLimits
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


@pytest.mark.parametrize(
    ("bounds", "want"),
    [
        (CacheBounds(), 900),
        (CacheBounds(memory_fraction=0.5), 400),
        (CacheBounds(kv_cache_size=300), 300),
        (CacheBounds(kv_cache_size=2000), 900),
        (CacheBounds(memory_fraction=0.5, swap_space=200), 300),
        (CacheBounds(kv_cache_size=850, swap_space=200), 700),
        (CacheBounds(memory_fraction=0.5, swap_space=900), -50),
    ],
    ids=str,
)
def test_the_cache_is_at_most_what_the_swap_space_and_the_weights_leave(bounds: CacheBounds, want: int) -> None:
    assert bounds.most(MemoryUse(total=1000, used=100)) == want


class NotedBatches(CpuBackend):
    """Keeps where the rows began that attention was planned for."""

    def __init__(self) -> None:
        super().__init__()
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
        cache=CacheBounds(kv_cache_size),
        progress=lambda _: None,
    )
    assert backend.batches == [(want, 64), (0, 64)]


def peak_of(run: Callable[[], object], trace: Path) -> int:
    """Bytes that `run` holds in tensors at its worst moment, as torch's allocator counts them.

    Exact, where the process's resident memory depends on what malloc keeps and on the size of the kernel's pages.
    """
    with profile(profile_memory=True) as profiled:
        run()
    profiled.export_chrome_trace(str(trace))
    events = [event["args"] for event in json.loads(trace.read_text())["traceEvents"] if event["name"] == "[memory]"]
    before = events[0]["Total Allocated"] - events[0]["Bytes"]
    return max(event["Total Allocated"] for event in events) - before


CONTEXT, TOKENS = 1 << 13, 256
DEEP_LIMITS = RunnerLimits(max_requests=2, max_tokens=CONTEXT, block_tokens=16)


def deep_runner(config: ModelConfig) -> tuple[ModelRunner, Ledger]:
    """With a cache for one request of the whole context."""
    runner = make_runner(
        config,
        RandomTensors(0, dtype=torch.float32, device=CPU),
        dtype="fp32",
        backend=CpuBackend(),
        limits=DEEP_LIMITS,
        max_batch_tokens=TOKENS,
        progress=lambda _: None,
    )
    ledger = size_cache(
        runner.facts.groups,
        model_context=CONTEXT,
        context_limit=None,
        kv_cache_size=(CONTEXT // 16 + 1) * runner.facts.groups[0].block_bytes,
        memory_fraction=1.0,
        device_bytes_total=1 << 40,
        device_bytes_used=0,
        step_tokens=TOKENS,
    )
    runner.allocate(ledger.blocks)
    return runner, ledger


def serve_the_end(runner: ModelRunner) -> None:
    """One step that fills the context but for the token that it samples."""
    table = tuple(BlockId(1 + block) for block in range(CONTEXT // 16))
    prompt = CONTEXT - 1
    start = RowStart(Row(0), [0] * prompt, prompt, 0, SamplingParams(max_tokens=1, seed=0), (table,))
    work = RowWork(Row(0), prompt - TOKENS, TOKENS, False, ((),), (Row(0),))
    runner.launch(StepPlan(0, (work,), started=(start,)))
    runner.collect()
    runner.launch(StepPlan(1, (), ended=(Row(0),)))
    runner.collect()


def test_neither_serving_nor_warming_up_takes_more_than_was_measured(tmp_path: Path) -> None:
    """The mask of 256 tokens over a past of 8,192 takes 8 MiB: at the beginning of the context it takes nothing."""
    config = replace(TINY, context_length=CONTEXT)
    model = build(config, RandomTensors(0, dtype=torch.float32, device=CPU))

    def measure(depth: int) -> None:
        measure_step(
            model,
            CpuBackend(),
            DEEP_LIMITS,
            max_batch_tokens=TOKENS,
            context=depth,
            dtype=torch.float32,
            formats=KVFormats.of("fp32"),
            device=CPU,
        )

    trace = tmp_path / "trace.json"
    at_the_beginning, measured = peak_of(lambda: measure(0), trace), peak_of(lambda: measure(CONTEXT), trace)
    assert measured > at_the_beginning + (8 << 20)

    runner, ledger = deep_runner(config)
    assert peak_of(lambda: serve_the_end(runner), trace) <= measured
    steps = Limits(max_requests=2, max_batch_tokens=TOKENS, chunked_prefill_tokens=TOKENS)
    assert peak_of(lambda: warm_up(runner, steps, ledger), trace) <= measured
