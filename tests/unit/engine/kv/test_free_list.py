import pytest

from kvik_engine.kv.block import Block
from kvik_engine.kv.free_list import LruList


def filled(count: int) -> tuple[LruList, list[Block]]:
    blocks = [Block(number) for number in range(1, count + 1)]
    lru = LruList()
    for block in blocks:
        lru.append(block)
    return lru, blocks


def test_the_oldest_leaves_first() -> None:
    lru, blocks = filled(3)
    for block in blocks:
        assert lru.oldest is block
        lru.remove(block)
    assert len(lru) == 0


@pytest.mark.parametrize("index", [0, 1, 2])
def test_a_block_can_be_taken_out_anywhere(index: int) -> None:
    lru, blocks = filled(3)
    lru.remove(blocks[index])
    assert list(lru) == [block for block in blocks if block is not blocks[index]]
    lru.append(blocks[index])
    assert list(lru)[-1] is blocks[index]


def test_a_block_is_in_a_list_once_at_most() -> None:
    lru, blocks = filled(2)
    with pytest.raises(AssertionError):
        lru.append(blocks[0])
    lru.remove(blocks[0])
    with pytest.raises(AssertionError):
        lru.remove(blocks[0])


def test_an_empty_list_has_no_oldest() -> None:
    lru, _ = filled(0)
    with pytest.raises(AssertionError):
        _ = lru.oldest
