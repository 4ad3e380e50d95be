"""An intrusive doubly linked list of blocks in the order of their last use. Every operation is O(1).

Only this file touches `previous` and `next` of a block.
"""

from __future__ import annotations

from collections.abc import Iterator

from kvik_engine.kv.block import Block


class LruList:
    """The head was used longest ago. A block is in at most one list, once."""

    def __init__(self) -> None:
        self._ends = Block(0)
        self._ends.previous = self._ends.next = self._ends
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Block]:
        block = self._ends.next
        while block is not None and block is not self._ends:
            yield block
            block = block.next

    def append(self, block: Block) -> None:
        """Put `block` at the tail: it was used just now."""
        assert block.next is None, "the block is in a list already"
        last = self._ends.previous
        assert last is not None
        last.next = block
        block.previous, block.next = last, self._ends
        self._ends.previous = block
        self._length += 1

    def remove(self, block: Block) -> None:
        """Take `block` out, wherever it is."""
        before, behind = block.previous, block.next
        assert before is not None, "the block is in no list"
        assert behind is not None, "the block is in no list"
        before.next, behind.previous = behind, before
        block.previous = block.next = None
        self._length -= 1

    @property
    def oldest(self) -> Block:
        """The head. The list must not be empty."""
        block = self._ends.next
        assert block is not None
        assert block is not self._ends, "the list is empty"
        return block
