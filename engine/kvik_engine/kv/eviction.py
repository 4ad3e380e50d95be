"""Which cached block goes when no block is free: a segmented LRU (Karedla, Love and Wherry, 1994). O(1) a block.

Blocks that were found in common go last, so that a prefix which many use outlives a flood of prompts that nobody
repeats. They have a bounded share of the pool; the longest unused beyond it stand behind the others once more.
Whoever finds a block finds those before it, too, and releases them later, so a parent goes after its children (but
where two branches computed a beginning at once: only the first one's blocks are found, and they may go first).
"""

from __future__ import annotations

from collections.abc import Iterator

from kvik_engine.kv.block import Block
from kvik_engine.kv.free_list import LruList

PROTECTED_SHARE = 0.8
"""Of the pool, for blocks that were found in common (docs/decisions/0034)."""


class SegmentedLru:
    """Cached blocks in the order in which they go. `common` of a block says in which segment it is."""

    def __init__(self, total: int, protected_share: float = PROTECTED_SHARE) -> None:
        self._others = LruList()
        self._common = LruList()
        self._protected = int(total * protected_share)

    def __len__(self) -> int:
        return len(self._others) + len(self._common)

    def __iter__(self) -> Iterator[Block]:
        yield from self._others
        yield from self._common

    def append(self, block: Block) -> None:
        """The block was used just now."""
        if not block.common:
            self._others.append(block)
            return
        self._common.append(block)
        if len(self._common) > self._protected:
            oldest = self._common.oldest
            self._common.remove(oldest)
            oldest.common = False
            self._others.append(oldest)

    def remove(self, block: Block) -> None:
        """Take `block` out, wherever it is."""
        (self._common if block.common else self._others).remove(block)

    @property
    def oldest(self) -> Block:
        """The block to go next. There must be one."""
        return self._others.oldest if len(self._others) else self._common.oldest
