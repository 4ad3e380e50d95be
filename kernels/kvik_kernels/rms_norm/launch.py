"""Launch sizes of rms_norm: pure, so that the CPU tests and aot see what a GPU will run."""

from __future__ import annotations

from dataclasses import dataclass

MAX_WIDTH = 32768
"""A row is held in the registers of one program: 64 elements a thread at most."""


@dataclass(frozen=True, slots=True)
class Tile:
    """One program norms one row: `elements` lanes over its width."""

    elements: int
    warps: int


def tile(width: int) -> Tile:
    """About eight elements a thread, until a program has all the threads it may.

    Raises ValueError for a row that no program holds.
    """
    if not 1 <= width <= MAX_WIDTH:
        raise ValueError(f"x: rows must have 1 to {MAX_WIDTH} elements, got {width}")
    elements = 1 << (width - 1).bit_length()
    return Tile(elements, warps=min(16, max(1, elements // 256)))
