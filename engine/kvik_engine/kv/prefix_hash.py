"""Finding blocks that hold the KV of a prompt's beginning, by a chained hash.

The digest of a block covers its tokens, all tokens before it and the salt, so equal digests mean equal KV and tenants
of different salts never meet. sha256, because a collision would show one client's text to another (vllm
GHSA-rm76-4mrf-v9r8). Only blocks whose tokens are all computed and accepted are added.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256

from kvik_engine.kv.block import SCRATCH, Block
from kvik_engine.kv.prefix_cache import GroupBlocks, Hit
from kvik_engine.kv.windows import blocks_of_hit, first_needed
from kvik_engine.request import Branch
from kvik_engine.step import KVGroup


def root(salt: bytes) -> bytes:
    """The digest before the first block of any prompt under `salt`."""
    return sha256(b"kvik prefix root\0" + salt).digest()


def chain(parent: bytes, tokens: Sequence[int]) -> bytes:
    """The digest of a block from the digest of the block before it."""
    return sha256(parent + array("I", tokens).tobytes()).digest()


def digest_of(branch: Branch, index: int, trail: list[bytes], block_tokens: int) -> bytes:
    """Of the branch's whole block number `index`, whose tokens must be known; `trail` keeps those before it."""
    while len(trail) <= index:
        start = len(trail) * block_tokens
        tokens = branch.tokens[start : start + block_tokens]
        assert len(tokens) == block_tokens, "only whole blocks of known tokens have a digest"
        trail.append(chain(trail[-1] if trail else root(branch.request.salt), tokens))
    return trail[index]


class BlockHashCache:
    """Whole blocks, found by digest. Equal blocks are not merged: the first one added is the one that is found."""

    def __init__(self, groups: Sequence[KVGroup]) -> None:
        self._groups = tuple(groups)
        self._block_tokens = groups[0].block_tokens
        self._found: list[dict[bytes, Block]] = [{} for _ in groups]

    def find(self, branch: Branch, limit: int) -> Hit:
        size = self._block_tokens
        tables: list[list[Block]] = [[] for _ in self._groups]

        def there() -> Iterator[list[bool]]:
            for index in range(limit // size):
                digest = self._digest(branch, index)
                for table, found in zip(tables, self._found, strict=True):
                    table.append(found.get(digest, SCRATCH))
                yield [table[-1] is not SCRATCH for table in tables]

        whole = blocks_of_hit(self._groups, there())
        firsts = [first_needed(group, whole * size) for group in self._groups]
        return Hit(
            whole * size,
            tuple((SCRATCH,) * first + tuple(table[first:whole]) for table, first in zip(tables, firsts, strict=True)),
        )

    def add(self, branch: Branch, tokens: int, tables: GroupBlocks, *, since: int) -> Sequence[Block]:
        for index in range(since // self._block_tokens, tokens // self._block_tokens):
            digest = self._digest(branch, index)
            for found, table in zip(self._found, tables, strict=True):
                block = table[index]
                if block is not SCRATCH and block.entry is None and digest not in found:
                    block.entry = digest
                    found[digest] = block
        return ()

    def forget(self, block: Block) -> Sequence[Block]:
        assert isinstance(block.entry, bytes), block
        del self._found[block.group][block.entry]
        block.entry = None
        return (block,)

    def blocks(self) -> Iterable[Block]:
        return (block for found in self._found for block in found.values())

    def _digest(self, branch: Branch, index: int) -> bytes:
        return digest_of(branch, index, branch.trail, self._block_tokens)
