"""Launch sizes of swiglu: pure, so that the CPU tests and aot see what a GPU will run."""

from __future__ import annotations

from dataclasses import dataclass

TILE = 1024
"""Elements of one program: eight a thread of four warps (16 bytes of a 2-byte type)."""


@dataclass(frozen=True, slots=True)
class Tile:
    """One program gates `elements` of one row."""

    elements: int
    warps: int


def tile(width: int) -> Tile:
    """A row is as many programs as it takes, so that few rows fill a GPU, too."""
    elements = min(TILE, 1 << (width - 1).bit_length())
    return Tile(elements, warps=max(1, elements // 256))
