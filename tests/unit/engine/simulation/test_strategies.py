"""Continuous against static batching, paging against contiguous reservation: the baselines work and lose as told."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from kvik_engine.core import strategy
from kvik_engine.core.strategy import Strategy
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


def run(
    trace: Sequence[TraceRequest], how: Strategy, *, rows: int = 16, pool_tokens: int = 60_000, step_tokens: int = 2048
) -> Outcome:
    config = config_of(
        H100_8B,
        max_requests=rows,
        max_batch_tokens=step_tokens,
        chunked_prefill_tokens=min(512, step_tokens),
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


def test_a_static_batch_takes_what_waits_when_it_begins_over_several_steps_and_nobody_who_comes_later() -> None:
    batching = StaticBatching()
    batching.begin(running=0, waiting=2, free_rows=4)
    batching.admitted()
    batching.begin(running=1, waiting=5, free_rows=3)
    assert batching.open_to_more()
    batching.admitted()
    assert not batching.open_to_more()
    batching.begin(running=1, waiting=4, free_rows=3)
    assert not batching.open_to_more()
    batching.begin(running=0, waiting=4, free_rows=4)
    assert batching.open_to_more()


def test_a_static_batch_is_as_large_as_rows_and_room_were_when_it_began() -> None:
    batching = StaticBatching()
    batching.begin(running=0, waiting=9, free_rows=2)
    batching.admitted()
    batching.admitted()
    batching.begin(running=1, waiting=7, free_rows=1)
    assert not batching.open_to_more()
    batching.begin(running=0, waiting=7, free_rows=2)
    batching.full()
    batching.begin(running=1, waiting=7, free_rows=2)
    assert not batching.open_to_more()


def test_who_comes_while_a_long_prompt_fills_the_steps_of_a_static_batch_waits_for_the_next_one() -> None:
    long = TraceRequest(arrival=0.0, prompt_tokens=1900, output_tokens=4)
    late = [TraceRequest(arrival=0.001 * (1 + i), prompt_tokens=60, output_tokens=4) for i in range(3)]
    outcome = run([long, *late], strategy.STATIC, rows=8, step_tokens=256)
    first, *others = outcome.records
    assert min(record.first or 0.0 for record in others) > (first.last or 0.0)


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
