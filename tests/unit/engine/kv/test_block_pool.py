import pytest

from kvik_engine.kv.block import Block
from kvik_engine.kv.block_pool import BlockPool


def make_pool(total: int) -> tuple[BlockPool, list[Block]]:
    """A pool, and the list of blocks whose content it gave up."""
    forgotten: list[Block] = []

    def forget(block: Block) -> list[Block]:
        block.entry = None
        forgotten.append(block)
        return [block]

    return BlockPool(total, forget), forgotten


def cached_block(pool: BlockPool, entry: bytes) -> Block:
    block = pool.take(0)
    block.entry = entry
    pool.drop(block)
    return block


def test_block_0_is_never_handed_out() -> None:
    pool, _ = make_pool(4)
    assert sorted(pool.take(0).id for _ in range(4)) == [1, 2, 3, 4]
    assert (pool.free, pool.cached, pool.owned) == (0, 0, 4)


def test_a_dropped_block_is_free_without_content_and_cached_with_it() -> None:
    pool, _ = make_pool(2)
    first, second = pool.take(0), pool.take(0)
    second.entry = b"content"
    pool.drop(first)
    pool.drop(second)
    assert (pool.free, pool.cached, pool.owned) == (1, 1, 0)


def test_free_blocks_are_taken_before_cached_ones_and_those_by_last_use() -> None:
    pool, forgotten = make_pool(3)
    old = cached_block(pool, b"old")
    first = pool.take(0)
    assert first is not old
    first.entry = b"new"
    pool.drop(first)
    assert pool.take(0) not in (old, first)
    assert pool.take(0) is old
    assert forgotten == [old]
    assert pool.take(0) is first


def test_a_cached_block_that_is_held_again_cannot_be_taken() -> None:
    pool, _ = make_pool(1)
    block = cached_block(pool, b"content")
    pool.hold(block)
    assert (pool.available, pool.owned) == (0, 1)
    pool.drop(block)
    assert (pool.cached, block.entry) == (1, b"content")


def test_a_pinned_block_stays_owned_when_its_holders_leave() -> None:
    pool, _ = make_pool(1)
    block = pool.take(0)
    pool.pin(block)
    pool.drop(block)
    assert (pool.available, pool.owned) == (0, 1)
    pool.unpin(block)
    assert (pool.available, pool.owned) == (1, 0)


@pytest.mark.parametrize("act", ["drop", "unpin", "pin"])
def test_a_block_nobody_holds_cannot_be_given_back_or_pinned(act: str) -> None:
    pool, _ = make_pool(1)
    block = pool.take(0)
    pool.drop(block)
    with pytest.raises(AssertionError):
        getattr(pool, act)(block)
