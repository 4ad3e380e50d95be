"""Continuous against static batching, paging against contiguous reservation: the baselines work and lose as told."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from kvik_engine.core import strategy
from kvik_engine.core.strategy import Strategy
from kvik_engine.params import SamplingParams
from kvik_engine.request import Request
from kvik_engine.scheduler.batching import StaticBatching
from kvik_engine.simulation.device import H100_8B
from kvik_engine.simulation.report import report
from kvik_engine.simulation.simulate import Outcome, config_of, simulate
from kvik_engine.simulation.trace import TraceRequest
from kvik_engine.simulation.workloads import Lengths, Stream, generate

MIXED = Stream(
    rate=100.0,
    prompt=Lengths(median=120, sigma=0.7, least=10, most=800),
    output=Lengths(median=60, sigma=1.0, least=4, most=900),
    max_tokens=1000,
)


def run(trace: Sequence[TraceRequest], how: Strategy, *, rows: int = 16, pool_tokens: int = 60_000) -> Outcome:
    config = config_of(
        H100_8B,
        max_requests=rows,
        max_batch_tokens=2048,
        chunked_prefill_tokens=512,
        max_queued_requests=10_000,
        max_context_tokens=2048,
        kv_cache_size=pool_tokens * H100_8B.kv_bytes_per_token,
    )
    return simulate(trace, H100_8B, config, strategy=how)


def trace(count: int) -> list[TraceRequest]:
    return generate((MIXED,), seconds=count / MIXED.rate, seed=5)


@pytest.mark.parametrize(
    "how", [strategy.STATIC, strategy.CONTIGUOUS, strategy.CONTIGUOUS_CONTEXT, strategy.STATIC_CONTIGUOUS]
)
def test_every_baseline_serves_all_requests_to_their_end(how: Strategy) -> None:
    outcome = run(trace(60), how)
    assert all(record.tokens == record.request.output_tokens for record in outcome.records)


def test_static_batches_begin_when_the_one_before_has_ended() -> None:
    requests = [TraceRequest(arrival=0.0, prompt_tokens=50, output_tokens=10 + 40 * (i % 2)) for i in range(8)]
    outcome = run(requests, strategy.STATIC, rows=4)
    first, second = outcome.records[:4], outcome.records[4:]
    assert max(record.first or 0.0 for record in first) < min(record.last or 0.0 for record in first)
    assert min(record.first or 0.0 for record in second) > max(record.last or 0.0 for record in first)


def test_a_static_batch_takes_requests_in_over_several_steps_of_prompts() -> None:
    batching = StaticBatching()
    batch = [Request((1, 1), [1], SamplingParams(max_tokens=1, seed=0), 1, 0, b"", 0.0)]
    assert batching.open_to_more([])
    batching.planned(tokens_left=False)
    assert batching.open_to_more(batch)
    batching.planned(tokens_left=True)
    assert not batching.open_to_more(batch)
    assert batching.open_to_more([])


def test_continuous_batching_gives_more_tokens_a_second_than_static() -> None:
    requests = trace(150)
    continuous, static = run(requests, strategy.PRODUCT), run(requests, strategy.STATIC)
    assert continuous.seconds < 0.6 * static.seconds


def test_paging_holds_more_requests_and_fewer_empty_slots_than_reservation() -> None:
    requests = trace(150)
    told = {
        name: report(run(requests, how, rows=64, pool_tokens=10_000))
        for name, how in (("paged", strategy.PRODUCT), ("contiguous", strategy.CONTIGUOUS))
    }
    assert told["paged"].fill is not None
    assert told["contiguous"].fill is not None
    assert told["paged"].fill > 0.9
    assert told["contiguous"].fill < 0.4
    assert told["paged"].mean_running > 2 * told["contiguous"].mean_running
    assert told["contiguous"].preemptions == 0
