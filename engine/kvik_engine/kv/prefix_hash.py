"""Finding blocks that hold the KV of a prompt's beginning, by a chained hash.

The digest of a block covers its tokens, all tokens before it and the salt, so equal digests mean equal KV and tenants
of different salts never meet. sha256, because a collision would show one client's text to another (vllm
GHSA-rm76-4mrf-v9r8). Only blocks whose tokens are all computed and accepted are added.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import sha256
from typing import Protocol

from kvik_engine.kv.block import Block
from kvik_engine.request import Branch


class PrefixCache(Protocol):
    """Maps beginnings of token sequences to blocks that hold their KV."""

    def find(self, branch: Branch, limit: int) -> list[tuple[Block, ...]]:
        """The longest run of leading blocks, one block per KV group each, that covers at most `limit` tokens."""
        ...

    def add(self, branch: Branch, index: int, blocks: Sequence[Block]) -> None:
        """The branch's block number `index` is computed and accepted; `blocks` has one block per KV group."""
        ...

    def forget(self, block: Block) -> None:
        """`block` will be reused or must not be found any more."""
        ...


def root(salt: bytes) -> bytes:
    """The digest before the first block of any prompt under `salt`."""
    return sha256(b"kvik prefix root\0" + salt).digest()


def chain(parent: bytes, tokens: Sequence[int]) -> bytes:
    """The digest of a block from the digest of the block before it."""
    return sha256(parent + array("I", tokens).tobytes()).digest()


class BlockHashCache:
    """Whole blocks, found by digest. Equal blocks are not merged: the first one added is the one that is found."""

    def __init__(self, block_tokens: int, groups: int) -> None:
        self._block_tokens = block_tokens
        self._found: list[dict[bytes, Block]] = [{} for _ in range(groups)]

    def find(self, branch: Branch, limit: int) -> list[tuple[Block, ...]]:
        hits: list[tuple[Block, ...]] = []
        for index in range(limit // self._block_tokens):
            digest = self._digest(branch, index)
            blocks = tuple(found[digest] for found in self._found if digest in found)
            if len(blocks) < len(self._found):
                break
            hits.append(blocks)
        return hits

    def add(self, branch: Branch, index: int, blocks: Sequence[Block]) -> None:
        digest = self._digest(branch, index)
        for found, block in zip(self._found, blocks, strict=True):
            if block.digest is None and digest not in found:
                block.digest = digest
                found[digest] = block

    def forget(self, block: Block) -> None:
        if block.digest is not None:
            del self._found[block.group][block.digest]
            block.digest = None

    def _digest(self, branch: Branch, index: int) -> bytes:
        trail = branch.trail
        while len(trail) <= index:
            start = len(trail) * self._block_tokens
            tokens = branch.tokens[start : start + self._block_tokens]
            assert len(tokens) == self._block_tokens, "only whole blocks of known tokens have a digest"
            trail.append(chain(trail[-1] if trail else root(branch.request.salt), tokens))
        return trail[index]


class NoPrefixCache:
    """Finds nothing and keeps nothing: prefixCache Disabled."""

    def find(self, branch: Branch, limit: int) -> list[tuple[Block, ...]]:
        return []

    def add(self, branch: Branch, index: int, blocks: Sequence[Block]) -> None:
        pass

    def forget(self, block: Block) -> None:
        assert block.digest is None
