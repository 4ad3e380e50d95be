"""What the KV manager asks of a prefix cache, whichever is chosen, and the choice of having none."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from kvik_engine.kv.block import SCRATCH, Block
from kvik_engine.request import Branch

GroupBlocks = Sequence[Sequence[Block]]
"""Leading blocks of a branch, one sequence per KV group, all equally long; SCRATCH where one was given back."""


@dataclass(frozen=True, slots=True)
class PartHit:
    """Blocks (one per KV group) whose first `tokens` tokens are the next ones of the branch: to be copied."""

    sources: tuple[Block, ...]
    tokens: int


@dataclass(frozen=True, slots=True)
class Hit:
    """What the cache has for the beginning of a branch: whole blocks to share, then perhaps a part of one to copy.

    `blocks` has SCRATCH for blocks of window groups behind the window of the first token after the whole blocks.
    """

    whole_tokens: int
    blocks: tuple[tuple[Block, ...], ...]
    part: PartHit | None = None
    common: bool = False
    """Whether others went on from its whole blocks differently: it is more than the past of one chat."""

    @property
    def tokens(self) -> int:
        """Tokens that need not be computed."""
        return self.whole_tokens + (self.part.tokens if self.part else 0)

    @property
    def shared(self) -> list[Block]:
        """The whole blocks, SCRATCH left out."""
        return [block for blocks in self.blocks for block in blocks if block is not SCRATCH]

    @property
    def sources(self) -> tuple[Block, ...]:
        return self.part.sources if self.part else ()

    def without_part(self) -> Hit:
        return replace(self, part=None) if self.part else self


class PrefixCache(Protocol):
    """Maps beginnings of token sequences to blocks that hold their KV. Branches of different salts never meet."""

    def find(self, branch: Branch, limit: int) -> Hit:
        """The longest beginning of at most `limit` tokens that is there in all KV groups."""
        ...

    def add(self, branch: Branch, tokens: int, tables: GroupBlocks, *, since: int) -> Sequence[Block]:
        """The branch's first `tokens` tokens are computed and accepted, and their KV is in `tables`.

        It was told so of the first `since` tokens before. Returns blocks that are not found any more, because these
        replace them.
        """
        ...

    def forget(self, block: Block) -> Sequence[Block]:
        """`block` will be reused or must not be found. Returns it and all that is not found without it."""
        ...

    def blocks(self) -> Iterable[Block]:
        """Every block that can be found, for checks."""
        ...


class NoPrefixCache:
    """Finds nothing and keeps nothing: prefixCache Disabled."""

    def __init__(self, groups: int) -> None:
        self._nothing = Hit(0, ((),) * groups)

    def find(self, branch: Branch, limit: int) -> Hit:
        return self._nothing

    def add(self, branch: Branch, tokens: int, tables: GroupBlocks, *, since: int) -> Sequence[Block]:
        return ()

    def forget(self, block: Block) -> Sequence[Block]:
        raise AssertionError(f"{block} was never indexed")

    def blocks(self) -> Iterable[Block]:
        return ()
