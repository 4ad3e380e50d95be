"""One block of KV memory and what is known of it."""

from __future__ import annotations

from kvik_engine.step import BlockId


class Block:
    """A place for the KV of `block_tokens` tokens.

    `holders` are branches that have it in a table; `pins` are planned steps and copies that still read or write it.
    A block without either is free (no content) or cached. `entry` is what the prefix cache knows it by and belongs to
    that; None: the cache does not find it. `common`: several went on from here differently (kv.eviction).
    """

    __slots__ = ("common", "entry", "group", "holders", "id", "next", "pins", "previous")

    def __init__(self, number: int) -> None:
        self.id = BlockId(number)
        self.holders = 0
        self.pins = 0
        self.group = 0
        self.entry: object | None = None
        self.common = False
        self.previous: Block | None = None
        self.next: Block | None = None

    @property
    def idle(self) -> bool:
        """Whether nobody needs the block: it is free or cached."""
        return not self.holders and not self.pins

    def __repr__(self) -> str:
        return f"Block({self.id}, holders={self.holders}, pins={self.pins}, indexed={self.entry is not None})"


SCRATCH = Block(0)
"""Stands in block tables where a block behind the window was given back. Nobody holds it, nobody reads it."""
