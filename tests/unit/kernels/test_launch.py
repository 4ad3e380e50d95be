"""Grids, tiles and split counts."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvik_kernels.device import Device
from kvik_kernels.kv_write import launch as kv_write
from kvik_kernels.paged_attention import launch
from kvik_kernels.rms_norm import launch as rms_norm
from kvik_kernels.rotary import launch as rotary
from kvik_kernels.swiglu import launch as swiglu

H200 = Device("sm_90", 132)
A100 = Device("sm_80", 108)
MI300 = Device("gfx942", 304)


@given(st.integers(1, 300), st.integers(1, 1024), st.integers(1, 128), st.integers(1, 1_000_000))
def test_splits_are_a_bounded_power_of_two(processors: int, rows: int, kv_heads: int, longest: int) -> None:
    splits = launch.decode_splits(processors=processors, rows=rows, kv_heads=kv_heads, longest=longest)
    assert 1 <= splits <= launch.MAX_SPLITS
    assert splits & (splits - 1) == 0


@given(st.integers(1, 300), st.integers(1, 128), st.integers(1, 1_000_000))
def test_splits_never_grow_with_the_batch(processors: int, kv_heads: int, longest: int) -> None:
    by_rows = [
        launch.decode_splits(processors=processors, rows=rows, kv_heads=kv_heads, longest=longest)
        for rows in (1, 2, 4, 8, 64, 512)
    ]
    assert by_rows == sorted(by_rows, reverse=True)


@pytest.mark.parametrize("longest", [1, 16, 255, 256])
def test_short_sequences_are_not_split(longest: int) -> None:
    assert launch.decode_splits(processors=132, rows=1, kv_heads=1, longest=longest) == 1


def test_a_single_long_row_fills_the_processors() -> None:
    """vLLM #48076: splits chosen by batch alone left processors idle."""
    splits = launch.decode_splits(processors=132, rows=1, kv_heads=8, longest=32_768)
    assert splits * 8 >= 132 * launch.PROGRAMS_PER_PROCESSOR / 2


def test_one_long_row_among_many_is_still_split() -> None:
    """256 rows fill the device by themselves, but a row of 100,000 keys would run on alone at the end."""
    splits = launch.decode_splits(processors=132, rows=256, kv_heads=8, longest=100_000)
    assert 100_000 / splits <= launch.MAX_SEGMENT_TOKENS


def test_a_full_batch_of_ordinary_rows_is_not_split() -> None:
    assert launch.decode_splits(processors=132, rows=128, kv_heads=8, longest=4096) == 1


def first_tile(start: int, row: int, block_q: int) -> int:
    """As `_row_of_tile` of the kernel has it."""
    return start // block_q + row


@given(st.lists(st.integers(0, 70), min_size=1, max_size=40), st.sampled_from([1, 2, 5, 16, 21, 64]))
def test_the_prefill_grid_holds_every_query_of_every_row(queries: list[int], block_q: int) -> None:
    """Rows' first tiles grow strictly, leave each row tiles enough, and end inside the grid."""
    starts = list(itertools.accumulate(queries, initial=0))
    tiles, heads = launch.prefill_grid(tokens=starts[-1], rows=len(queries), kv_heads=3, block_q=block_q)
    assert heads == 3
    for row, length in enumerate(queries):
        first, following = first_tile(starts[row], row, block_q), first_tile(starts[row + 1], row + 1, block_q)
        assert first < following
        assert first + -(-length // block_q) <= following
        assert following <= tiles


@pytest.mark.parametrize("device", [H200, A100, MI300], ids=lambda device: device.architecture)
@pytest.mark.parametrize("element_bytes", [2, 4])
@pytest.mark.parametrize("group", [1, 3, 8, 16, 17, 71, 128])
@pytest.mark.parametrize("head_dim", [1, 16, 64, 80, 128, 192, 256])
def test_every_shape_has_tiles(device: Device, element_bytes: int, group: int, head_dim: int) -> None:
    shape = {"group": group, "head_dim": head_dim, "element_bytes": element_bytes}
    for tiles in (
        launch.decode_tiles(device, **shape),
        launch.prefill_tiles(device, **shape, max_query_len=2),
        launch.prefill_tiles(device, **shape, max_query_len=4096),
    ):
        for size in (tiles.block_m, tiles.block_d, tiles.tile):
            assert size >= 16, "tl.dot needs 16 in each dimension"
            assert size & (size - 1) == 0
        assert tiles.block_d >= head_dim
        assert tiles.block_q >= 1
        assert tiles.block_q * group <= tiles.block_m
        assert launch.MIN_SEGMENT_TOKENS % tiles.tile == 0, "a segment is whole tiles"


@given(st.integers(1, 128), st.integers(1, 256))
def test_one_program_writes_a_whole_token(kv_heads: int, head_dim: int) -> None:
    tile = kv_write.tile(kv_heads, head_dim)
    assert kv_heads * head_dim <= tile.elements < 2 * kv_heads * head_dim + 1
    assert tile.elements & (tile.elements - 1) == 0
    assert tile.warps in (1, 2, 4, 8)


@given(st.integers(1, rms_norm.MAX_WIDTH))
def test_one_program_holds_a_whole_row_and_no_thread_more_than_64_elements(width: int) -> None:
    tile = rms_norm.tile(width)
    assert width <= tile.elements < 2 * width
    assert 1 <= tile.warps <= 16
    assert tile.elements <= 64 * 32 * tile.warps


@given(st.integers(1, 256), st.integers(1, 128))
def test_heads_are_turned_by_programs_of_a_bounded_size(heads: int, pairs: int) -> None:
    tile = rotary.tile(heads, 2 * pairs)
    assert tile.block_p >= pairs
    assert tile.block_h < 2 * heads
    assert tile.block_h * tile.block_p <= rotary.PAIRS
    assert 1 <= tile.warps <= 8


@given(st.integers(1, 100_000))
def test_gates_are_tiled_by_a_bounded_power_of_two(width: int) -> None:
    tile = swiglu.tile(width)
    assert tile.elements & (tile.elements - 1) == 0
    assert min(width, swiglu.TILE) <= tile.elements <= swiglu.TILE
