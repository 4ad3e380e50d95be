"""Launch sizes of rotary: pure, so that the CPU tests and aot see what a GPU will run."""

from __future__ import annotations

from dataclasses import dataclass

PAIRS = 1024
"""Of one program: eight a thread of four warps, and several programs a token, so that one token fills more than one
processor."""


@dataclass(frozen=True, slots=True)
class Tile:
    """One program turns `block_h` heads of one token, with lanes for `block_p` pairs each."""

    block_h: int
    block_p: int
    warps: int


def tile(heads: int, head_dim: int) -> Tile:
    """As many heads as have PAIRS pairs, or all."""
    block_p = 1 << (head_dim // 2 - 1).bit_length()
    block_h = min(1 << (heads - 1).bit_length(), max(1, PAIRS // block_p))
    return Tile(block_h, block_p, warps=min(8, max(1, block_h * block_p // 256)))
