"""Grids, tiles and split counts of paged_attention: pure, so that the CPU tests and aot see what a GPU will run.

There is no autotuning: it would compile and measure while requests wait, and choose differently from pod to pod
(docs/decisions/0008).
"""

from __future__ import annotations

from dataclasses import dataclass

from kvik_kernels.device import Device

MIN_SEGMENT_TOKENS = 256
"""A split shorter than this costs more in its own start and in the reduce than it gains."""
MAX_SEGMENT_TOKENS = 8192
"""One program never walks more keys of a row than this, so that one long row does not outlast a batch of short ones."""
MAX_SPLITS = 128
REDUCE_CHUNK = 16
"""Partial results that a reduce program reads at once."""
REDUCE_WARPS = 4
PROGRAMS_PER_PROCESSOR = 4
"""Decode programs that fit one processor together by registers and shared memory (docs/decisions/0008)."""


@dataclass(frozen=True, slots=True)
class Tiles:
    """Tile sizes and launch options of one kernel variant."""

    block_m: int
    """Rows of the query tile: query tokens × heads of a group, padded for the matrix units."""
    block_q: int
    """Query tokens in a tile, block_m // group."""
    block_d: int
    """head_dim padded to a power of two."""
    tile: int
    """Keys walked at once."""
    warps: int
    stages: int


def padded_head_dim(head_dim: int) -> int:
    """The tile width for a head: a power of two, at least the 16 that tl.dot needs."""
    return max(16, _power_of_two(head_dim))


def prefill_tiles(device: Device, *, group: int, head_dim: int, element_bytes: int, max_query_len: int) -> Tiles:
    """Tiles for a batch that holds a query of up to `max_query_len` tokens. `group` = query heads a KV head."""
    block_d = padded_head_dim(head_dim)
    if element_bytes == 4:
        # Float32 has no matrix units here: exactness is the point, registers are the limit.
        block_m, tile = 16, 16
    elif max_query_len * group <= 16:
        # A batch of short queries would leave most rows of a larger tile empty.
        block_m, tile = 16, 64 if block_d <= 128 else 32
    else:
        # 64 rows fill the matrix units; where these read registers, a wide head leaves room for fewer keys.
        block_m, tile = 64, 64 if block_d <= (128 if device.dot_reads_shared_memory else 64) else 32
    block_m = max(block_m, _power_of_two(group))
    stages = 1 if device.is_amd else 2
    return Tiles(block_m, block_m // group, block_d, tile, warps=4, stages=stages)


def prefill_grid(*, tokens: int, rows: int, kv_heads: int, block_q: int) -> tuple[int, int]:
    """Programs (query tiles, KV heads): enough for any division of `tokens` among `rows`."""
    return tokens // block_q + rows, kv_heads


def decode_tiles(device: Device, *, group: int, head_dim: int, element_bytes: int) -> Tiles:
    """Tiles for one query a row: the group alone fills the query tile."""
    block_d = padded_head_dim(head_dim)
    block_m = max(16, _power_of_two(group))
    tile = 16 if element_bytes == 4 else 64 if block_d <= 128 else 32
    stages = 1 if device.is_amd else 3
    return Tiles(block_m, 1, block_d, tile, warps=4, stages=stages)


def decode_splits(*, processors: int, rows: int, kv_heads: int, longest: int) -> int:
    """Into how many programs each row's keys are divided; a power of two.

    longest: the most keys a row may have. Batch alone is not enough: few rows leave processors idle (vLLM #48076), and
    one long row among many short ones runs alone at the end. The count depends on nothing that changes inside a
    captured CUDA graph; programs derive their range from the lengths in device memory and leave early.
    """
    fill = -(-processors * PROGRAMS_PER_PROCESSOR // (rows * kv_heads))
    most = -(-longest // MIN_SEGMENT_TOKENS)
    least = -(-longest // MAX_SEGMENT_TOKENS)
    wanted = max(min(fill, most), least)
    return min(_power_of_two(wanted), MAX_SPLITS)


def _power_of_two(number: int) -> int:
    """The smallest power of two that is at least `number`."""
    return 1 << max(0, number - 1).bit_length()
