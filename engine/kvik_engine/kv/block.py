"""One block of KV memory and what is known of it."""

from __future__ import annotations

from kvik_engine.step import BlockId


class Block:
    """A place for the KV of `block_tokens` tokens.

    `holders` are branches that have it in a table; `pins` are planned steps and copies that still read or write it.
    A block without either is free (no content) or cached (`digest` set: the prefix cache finds it).
    """

    __slots__ = ("digest", "group", "holders", "id", "next", "pins", "previous")

    def __init__(self, number: int) -> None:
        self.id = BlockId(number)
        self.holders = 0
        self.pins = 0
        self.group = 0
        self.digest: bytes | None = None
        self.previous: Block | None = None
        self.next: Block | None = None

    def __repr__(self) -> str:
        return f"Block({self.id}, holders={self.holders}, pins={self.pins}, cached={self.digest is not None})"
