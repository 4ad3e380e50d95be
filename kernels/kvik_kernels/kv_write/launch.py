"""Launch sizes of kv_write: pure, so that the CPU tests and aot see what a GPU will run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tile:
    """One program copies one token's keys and values: `elements` lanes over kv_heads * head_dim."""

    elements: int
    warps: int


def tile(kv_heads: int, head_dim: int) -> Tile:
    """The lanes for one token, all heads at once, and about eight of them a thread (16 bytes of a 2-byte type)."""
    elements = 1 << (kv_heads * head_dim - 1).bit_length()
    return Tile(elements, warps=min(8, max(1, elements // 256)))


@dataclass(frozen=True, slots=True)
class QuantisedTile:
    """One program quantises one token's keys and values: lanes [block_h, block_d] over heads and their elements."""

    block_h: int
    block_d: int
    warps: int


def quantised_tile(kv_heads: int, head_dim: int) -> QuantisedTile:
    """As `tile`, with a head's lanes in one row, so that its largest element can be found."""
    block_h, block_d = 1 << (kv_heads - 1).bit_length(), 1 << (head_dim - 1).bit_length()
    return QuantisedTile(block_h, block_d, warps=min(8, max(1, block_h * block_d // 256)))
