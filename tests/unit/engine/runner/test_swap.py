import pytest
import torch

from kvik_engine.runner.swap import HostMemory
from kvik_engine.step import BlockId, HostSlot, SwapIn, SwapOut


def regions(blocks: int = 5, size: int = 96) -> torch.Tensor:
    return torch.arange(blocks * size).remainder(251).to(torch.uint8).view(blocks, size)


def out(block: int, slot: int) -> SwapOut:
    return SwapOut(BlockId(block), HostSlot(slot))


def back(slot: int, block: int) -> SwapIn:
    return SwapIn(HostSlot(slot), BlockId(block))


def test_blocks_go_out_and_come_back_somewhere_else_unchanged() -> None:
    blocks = regions()
    before = blocks.clone()
    host = HostMemory(blocks, slots=3)
    host.swap_out([out(1, 2), out(3, 0)])
    blocks.zero_()
    host.swap_in([back(2, 4), back(0, 1)])

    assert torch.equal(blocks[4], before[1])
    assert torch.equal(blocks[1], before[3])
    assert not blocks[[0, 2, 3]].any()


def test_the_host_sees_each_slot_as_a_region_of_its_memory() -> None:
    blocks = regions()
    host = HostMemory(blocks, slots=3)
    space = host.measure()
    host.swap_out([out(3, 1)])

    assert space.bytes == 3 * 96
    assert bytes(space.memory[96:192]) == bytes(blocks[3].tolist())


@pytest.mark.parametrize(("blocks", "slots"), [(1, 1), (5, 2), (2, 7)])
def test_measuring_changes_no_block(blocks: int, slots: int) -> None:
    pool = regions(blocks)
    before = pool.clone()
    space = HostMemory(pool, slots).measure()

    assert torch.equal(pool, before)
    assert space.copy_bytes_per_second > 0
