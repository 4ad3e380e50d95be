from __future__ import annotations

from kvik_engine.kv.manager import KVManager
from kvik_engine.kv.prefix_hash import BlockHashCache
from kvik_engine.params import SamplingParams
from kvik_engine.request import Request
from kvik_engine.scheduler import admission
from kvik_engine.step import GroupKind, KVGroup
from tests.support.engine_harness import Harness

BLOCK = 4


def make_kv(blocks: int) -> KVManager:
    groups = [KVGroup(GroupKind.FULL, (0,), BLOCK, 64)]
    return KVManager(groups, blocks, BlockHashCache(groups), step_tokens=64)


def make(prompt: int, max_tokens: int, n: int = 1) -> Request:
    return Request((1, 1), [1] * prompt, SamplingParams(max_tokens=max_tokens, seed=0, n=n), 1, 0, b"", 0.0)


def test_choices_share_the_whole_blocks_of_the_prompt() -> None:
    kv = make_kv(100)
    assert admission.blocks_for_known(make(10, 8), kv) == 3
    assert admission.blocks_for_known(make(10, 8, n=3), kv) == 2 + 3
    assert admission.blocks_for_known(make(8, 8, n=3), kv) == 2


def test_the_last_token_needs_no_block() -> None:
    kv = make_kv(100)
    assert admission.blocks_at_most(make(4, 1), kv) == 1
    assert admission.blocks_at_most(make(4, 2), kv) == 2
    assert admission.blocks_at_most(make(10, 7, n=2), kv) == 2 + 2 * 2


def test_a_request_that_can_never_fit_is_known_before_it_is_queued() -> None:
    """vllm #39734: larger than the pool but within the context, it blocked the queue for ever."""
    kv = make_kv(5)
    assert admission.can_ever_fit(make(16, 5), kv, rows=1)
    assert not admission.can_ever_fit(make(16, 6), kv, rows=1)
    assert not admission.can_ever_fit(make(1, 1, n=3), kv, rows=2)


def test_a_pool_filled_to_the_last_block_still_serves_the_largest_request() -> None:
    harness = Harness(blocks=5, max_batch_tokens=64)
    harness.submit(1, [1] * 16, max_tokens=5, stop_token_ids=())
    harness.run()
    harness.assert_solo(1)


def test_a_prompt_is_not_admitted_into_room_that_is_owed_to_another() -> None:
    """vllm #45388: partial reservations of two prompts that do not fit together deadlock."""
    harness = Harness(blocks=14, chunked_prefill_tokens=4, max_batch_tokens=8, prefix_cache=False)
    harness.submit(1, range(1, 41), max_tokens=4)
    harness.submit(2, range(2, 42), max_tokens=4)
    harness.step()
    assert len(harness.scheduler.running) == 1
    assert harness.kv.pool.available >= 10
    harness.run()
    assert harness.scheduler.counters.preemptions == 0
    harness.assert_solo(1)
    harness.assert_solo(2)


def test_own_hits_are_not_counted_as_room() -> None:
    """Cached blocks that the request hits cost nothing, but taking them leaves less for its other blocks."""
    harness = Harness(blocks=10, max_batch_tokens=64, index=BlockHashCache)
    harness.submit(1, range(1, 26), max_tokens=1)
    harness.run()
    assert harness.kv.pool.cached == 6
    harness.submit(2, [*range(1, 26), *range(1, 13)], max_tokens=3)
    harness.run()
    assert harness.heard[2, 0].cached_tokens == 24
    harness.assert_solo(2)


def test_a_watermark_is_kept_for_the_growth_of_running_requests() -> None:
    harness = Harness(blocks=7, max_batch_tokens=64, prefix_cache=False)
    harness.submit(1, [1] * 11, max_tokens=2, stop_token_ids=())
    harness.submit(2, [2] * 16, max_tokens=2, stop_token_ids=())
    harness.step()
    assert (len(harness.scheduler.running), len(harness.scheduler.waiting)) == (1, 1)
    harness.run()
    assert harness.scheduler.counters.preemptions == 0
