"""The pool: every block is free, cached or owned, and never two of these.

    free    no content; taken first
    cached  content that the prefix cache finds, no holder; one of them goes when no block is free (kv.eviction)
    owned   held by branches, or pinned by planned steps and copies

free + cached + owned = total. Block 0 is the runner's scratch block and not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from kvik_engine.kv.block import Block
from kvik_engine.kv.eviction import SegmentedLru


class BlockPool:
    """Blocks 1 to `total`. `forget` tells the prefix cache to find a block no longer, and returns what it lost."""

    def __init__(self, total: int, forget: Callable[[Block], Sequence[Block]]) -> None:
        self.blocks = [Block(number) for number in range(1, total + 1)]
        self._free = list(reversed(self.blocks))
        self._cached = SegmentedLru(total)
        self._forget = forget
        self.evicting: Callable[[Block], None] = lambda block: None
        """Told of a cached block that is given to somebody else, while its content is still there."""

    @property
    def total(self) -> int:
        return len(self.blocks)

    @property
    def free(self) -> int:
        return len(self._free)

    @property
    def cached(self) -> int:
        return len(self._cached)

    @property
    def owned(self) -> int:
        return len(self.blocks) - len(self._free) - len(self._cached)

    @property
    def available(self) -> int:
        """Blocks that `take` can give now."""
        return len(self._free) + len(self._cached)

    def take(self, group: int) -> Block:
        """A block without content, for one holder. There must be one available."""
        if not self._free:
            self._evict(self._cached.oldest)
        block = self._free.pop()
        assert block.entry is None, block
        assert block.idle, block
        block.holders = 1
        block.group = group
        block.common = False
        return block

    def take_these(self, blocks: Sequence[Block]) -> None:
        """Take chosen free blocks, of group 0. O(free blocks)."""
        taken = set(blocks)
        assert taken <= set(self._free)
        self._free = [block for block in self._free if block not in taken]
        for block in blocks:
            block.holders = 1
            block.group = 0

    def _evict(self, block: Block) -> None:
        """Free a cached block, and what is not found without it; the block itself is taken next.

        Only of the block itself is `evicting` told: its content is copied in the step that fills it anew, whereas the
        others lie free and may be filled by any step. They are few, since a parent goes after its children.
        """
        self.evicting(block)
        self.uncache(sorted(self._forget(block), key=lambda lost: lost is block))

    def hold(self, block: Block) -> None:
        """One holder more; a cached block becomes owned."""
        if block.idle:
            self._cached.remove(block)
        block.holders += 1

    def hold_common(self, block: Block) -> None:
        """One holder more, of a block whose content is the beginning of several."""
        self.hold(block)
        block.common = True

    def drop(self, block: Block) -> None:
        """One holder less."""
        assert block.holders > 0, block
        block.holders -= 1
        self._put_back(block)

    def forget(self, block: Block) -> None:
        """The content of an indexed block shall not be found any more; if nobody needs the block, it becomes free."""
        self.uncache(self._forget(block))

    def uncache(self, blocks: Iterable[Block]) -> None:
        """The prefix cache does not find these blocks any more: those that nobody needs become free."""
        for block in blocks:
            assert block.entry is None, block
            if block.idle:
                self._cached.remove(block)
                self._free.append(block)

    def pin(self, block: Block) -> None:
        """Keep an owned block although its holders may leave."""
        assert block.holders or block.pins, block
        block.pins += 1

    def unpin(self, block: Block) -> None:
        assert block.pins > 0, block
        block.pins -= 1
        self._put_back(block)

    def free_blocks(self) -> list[Block]:
        """The free blocks, for checks and tests."""
        return list(self._free)

    def cached_blocks(self) -> list[Block]:
        """The cached blocks in the order in which they go, for checks and tests."""
        return list(self._cached)

    def _put_back(self, block: Block) -> None:
        if not block.idle:
            return
        if block.entry is None:
            self._free.append(block)
        else:
            self._cached.append(block)
