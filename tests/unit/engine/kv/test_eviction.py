"""Which cached blocks go first."""

from __future__ import annotations

import pytest

from kvik_engine.kv.block import Block
from kvik_engine.kv.eviction import SegmentedLru
from kvik_engine.kv.prefix_hash import BlockHashCache
from tests.support.engine_harness import Harness
from tests.support.fake_runner import VOCAB

BLOCKS = 40


def words(first: int, count: int) -> list[int]:
    return [(first * 17 + i * (first % 5 + 1)) % (VOCAB - 1) + 1 for i in range(count)]


def ask(harness: Harness, request_id: int, prompt: list[int]) -> int:
    """Serve one request alone; returns its cached tokens."""
    harness.submit(request_id, prompt, max_tokens=2, stop_token_ids=())
    harness.run()
    harness.assert_solo(request_id)
    return harness.heard[request_id, 0].cached_tokens


def flood(harness: Harness, first_id: int, requests: int) -> None:
    for request_id in range(first_id, first_id + requests):
        ask(harness, request_id, [request_id % 50 + 10, request_id % 7 + 1, *words(request_id, 14)])


def test_long_prefix_survives_a_flood_of_short_ones() -> None:
    harness = Harness(blocks=BLOCKS, max_batch_tokens=64)
    prefix = [1, 2, 3, 4] * 8
    for request_id in range(3):
        ask(harness, request_id, [*prefix, *words(request_id + 1, 6)])
    flood(harness, 100, 60)
    assert ask(harness, 3, [*prefix, *words(9, 6)]) >= len(prefix)


def test_a_prefix_that_nobody_shares_does_not_survive_it() -> None:
    harness = Harness(blocks=BLOCKS, max_batch_tokens=64)
    chat = [1, 2, 3, 4] * 6
    for request_id in range(3):
        cached = ask(harness, request_id, chat)
        assert cached > 0 or not request_id
        chat = [*chat, *harness.output(request_id), 5, 6, 7]
    flood(harness, 100, 60)
    assert ask(harness, 3, chat) < 4


def test_prefixes_that_are_not_used_any_more_do_not_stay_for_ever() -> None:
    harness = Harness(blocks=BLOCKS, max_batch_tokens=64)
    prefixes = [[n, n + 1, n + 2, n + 3] * 5 for n in range(1, 60, 6)]
    for n, prefix in enumerate(prefixes):
        for k in range(3):
            ask(harness, 10 * n + k, [*prefix, *words(k + 2, 5)])
    assert ask(harness, 1000, [*prefixes[-1], 60, 61]) >= 20
    assert ask(harness, 1001, [*prefixes[0], 60, 61]) < 20


def test_the_block_hash_goes_by_last_use_alone() -> None:
    harness = Harness(blocks=BLOCKS, max_batch_tokens=64, index=BlockHashCache)
    prefix = [1, 2, 3, 4] * 8
    for request_id in range(3):
        ask(harness, request_id, [*prefix, *words(request_id + 1, 6)])
    flood(harness, 100, 60)
    assert ask(harness, 3, [*prefix, *words(9, 6)]) == 0


def make(count: int, *, common: bool) -> list[Block]:
    blocks = [Block(number) for number in range(1, count + 1)]
    for block in blocks:
        block.common = common
    return blocks


def test_common_blocks_go_last_and_by_last_use_within_their_share() -> None:
    order = SegmentedLru(10, protected_share=0.5)
    others, common = make(2, common=False), make(6, common=True)
    for block in (*common, *others):
        order.append(block)
    assert len(order) == 8
    assert list(order) == [common[0], *others, *common[1:]]
    assert not common[0].common
    for block in list(order):
        assert order.oldest is block
        order.remove(block)
    assert len(order) == 0


def test_an_empty_order_has_no_oldest() -> None:
    with pytest.raises(AssertionError):
        _ = SegmentedLru(10).oldest
