"""What the host's memory holds of a branch, and what a load brings back from there."""

from __future__ import annotations

from dataclasses import dataclass

from kvik_engine.kv.block import Block
from kvik_engine.kv.host_pool import Slot
from kvik_engine.kv.host_prefix import Place, Places
from kvik_engine.kv.prefix_cache import Hit
from kvik_engine.request import Branch

Slots = tuple[tuple[Slot | None, ...], ...]
"""One table per KV group; None for blocks behind the window."""


@dataclass(frozen=True, slots=True)
class HostHolding:
    """KV of a branch's first `tokens` tokens."""

    tables: Slots
    tokens: int


@dataclass(frozen=True, slots=True)
class BranchLoad:
    """How a branch gets its first `tokens` tokens: blocks that the device has, then those that are filled."""

    branch: Branch
    hit: Hit
    tables: Places
    tokens: int


@dataclass(frozen=True, slots=True)
class HostLoad:
    """Loads of all branches that come back together. A place that several of them have fills one block."""

    branches: tuple[BranchLoad, ...]
    swapped: bool
    """Whether it is their own KV, not a cached prefix that may be gone any time."""

    @property
    def places(self) -> dict[Place, int]:
        """Each place once, with its group."""
        return {
            place: group
            for one in self.branches
            for group, table in enumerate(one.tables)
            for place in table
            if place is not None
        }

    @property
    def missing(self) -> int:
        idle = {block for one in self.branches for block in one.hit.shared if block.idle}
        return len(self.places) + len(idle)


@dataclass(frozen=True, slots=True)
class Fill:
    """Slots that are pinned for the blocks of a Loading branch, and those of them that the disk still fills."""

    copies: list[tuple[Slot, Block]]
    unread: set[Slot]
