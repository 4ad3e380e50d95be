from __future__ import annotations

import pytest

from kvik_engine.scheduler.tiers import DELAY_SECONDS, FIRST_RATE, STRETCH, tier_of, turn_of
from tests.support.engine_harness import Harness
from tests.support.fake_runner import FakeRunner


def first_token_steps(harness: Harness, *request_ids: int) -> list[int]:
    """How many steps from now each of the requests got its first token in."""
    found: dict[int, int] = {}
    for step in range(1, 200):
        harness.step()
        for request_id in request_ids:
            if (request_id, 0) in harness.heard:
                found.setdefault(request_id, step)
        if len(found) == len(request_ids):
            break
    return [found[request_id] for request_id in request_ids]


def test_tiers_grow_by_what_a_chunk_computes() -> None:
    assert [tier_of(tokens, 100) for tokens in (1, 100, 101, 400, 401)] == [0, 0, 1, 1, 2]
    assert [turn_of(10.0, tier, 50, 1000.0) for tier in (0, 1, 2)] == [10.0 + delay for delay in DELAY_SECONDS]


def test_a_long_prompt_is_passed_for_as_long_as_it_takes_on_a_slow_device() -> None:
    assert turn_of(10.0, 2, 4000, 800.0) == 10.0 + STRETCH * 5
    assert turn_of(10.0, 2, 4000, 20_000.0) == 10.0 + DELAY_SECONDS[2]
    assert turn_of(10.0, 1, 300, None) == 10.0 + STRETCH * 300 / FIRST_RATE
    assert turn_of(10.0, 0, 4000, 1.0) == 10.0


def test_a_short_prompt_is_not_held_up_by_a_long_one_that_is_being_computed() -> None:
    """The long one is the head and keeps at least half of every chunk."""
    harness = Harness(blocks=400, chunked_prefill_tokens=16, max_batch_tokens=64, block_tokens=4)
    harness.submit(0, [9], max_tokens=200, stop_token_ids=())
    harness.step()
    harness.submit(1, [1 + i % 60 for i in range(320)], max_tokens=2, slo_class=0)
    for _ in range(3):
        harness.step()
    for request_id in (2, 3, 4):
        harness.submit(request_id, [request_id] * 4, max_tokens=2, slo_class=0)
    short = first_token_steps(harness, 2, 3, 4)
    assert max(short) <= 2
    chunks = [max(work.length for work in plan.work) for plan in harness.fake.plans[1:-1]]
    assert min(chunks) >= 8
    harness.run()
    for request_id in range(5):
        harness.assert_solo(request_id)


def test_a_short_prompt_passes_a_long_one_that_waits_but_only_within_its_delay() -> None:
    harness = Harness(blocks=400, max_requests=1, chunked_prefill_tokens=8, max_batch_tokens=8)
    harness.submit(1, [1, 2, 3], max_tokens=30, stop_token_ids=())
    harness.step()
    harness.submit(2, [5] * 60, max_tokens=1)
    harness.step(seconds=DELAY_SECONDS[2] / 2)
    harness.submit(3, [6, 7], max_tokens=1)
    harness.step(seconds=DELAY_SECONDS[2])
    harness.submit(4, [7, 8], max_tokens=1)
    harness.run()
    assert list(dict.fromkeys(request_id for request_id, _ in harness.heard)) == [1, 3, 2, 4]


def test_on_a_slow_device_a_short_prompt_waits_for_no_long_one_that_began_many_seconds_before() -> None:
    slow = FakeRunner(block_tokens=4, rows=8, seconds=0.5)
    harness = Harness(blocks=400, chunked_prefill_tokens=16, max_batch_tokens=16, runner=slow)
    harness.submit(0, [9] * 16, max_tokens=1)
    harness.run()
    harness.submit(1, [1 + i % 60 for i in range(320)], max_tokens=1)
    for _ in range(10):
        harness.step(seconds=slow.seconds)
    harness.submit(2, [7] * 4, max_tokens=1)
    assert first_token_steps(harness, 2, 1) == [1, 11]


def test_chats_with_few_new_tokens_each_do_not_put_a_long_prompt_off_for_minutes() -> None:
    """They made the rate 100 tokens a second, at which 8,000 tokens get a delay of 160 s."""
    device = FakeRunner(block_tokens=4, rows=8, seconds=0.05)
    harness = Harness(blocks=400, chunked_prefill_tokens=128, max_batch_tokens=512, runner=device)
    shared = [1 + i % 60 for i in range(64)]
    for request_id in range(40):
        harness.submit(request_id, [*shared, *[request_id] * 5], max_tokens=1)
        harness.run()
    assert harness.scheduler.prefill_rate.tokens_per_second is None

    harness.submit(40, [9], max_tokens=200, stop_token_ids=())
    harness.step()
    harness.submit(41, [7 + i % 50 for i in range(800)], max_tokens=1)
    for _ in range(8):
        harness.step()
    assert harness.scheduler.prefill_rate.tokens_per_second == pytest.approx(128 / device.seconds)


def test_steps_whose_tokens_are_all_taken_by_decoding_rows_are_not_full_of_prompts() -> None:
    slow = FakeRunner(block_tokens=4, rows=8, seconds=0.5)
    harness = Harness(blocks=400, chunked_prefill_tokens=8, max_batch_tokens=8, runner=slow)
    for request_id in range(8):
        harness.submit(request_id, [request_id + 1], max_tokens=20, stop_token_ids=())
    harness.step()
    known = harness.scheduler.prefill_rate.tokens_per_second
    for _ in range(10):
        harness.step()
    assert known == harness.scheduler.prefill_rate.tokens_per_second == 16


def test_what_the_prefix_cache_has_makes_no_prompt_long() -> None:
    harness = Harness(blocks=400, max_requests=2, chunked_prefill_tokens=8, max_batch_tokens=64)
    harness.submit(1, [1 + i % 60 for i in range(80)], max_tokens=1)
    harness.run()
    harness.submit(2, [1 + i % 60 for i in range(84)], max_tokens=4)
    harness.submit(3, [1 + i % 50 for i in range(84)], max_tokens=4)
    harness.step()
    assert sorted(request.tier for request in harness.scheduler.running) == [0, 2]
    harness.run()


def test_a_low_priority_prompt_at_the_head_is_computed_beside_better_ones_that_keep_coming() -> None:
    harness = Harness(blocks=400, chunked_prefill_tokens=8, max_batch_tokens=64, prefix_cache=False)
    harness.submit(0, [9], max_tokens=400, stop_token_ids=(), slo_class=2)
    harness.step()
    harness.submit(1, [1 + i % 60 for i in range(64)], max_tokens=1, priority=100)
    harness.step()
    for request_id in range(2, 40):
        harness.submit(request_id, [request_id] * 12, max_tokens=1, priority=-100)
        harness.step()
        if (1, 0) in harness.heard:
            break
    assert harness.heard[1, 0].finish is not None
