"""By which names the content of whole blocks is known outside of the device: group and chained digest.

The device's prefix cache may be a tree and know nothing of digests; lower tiers only see single blocks. The digest
covers the block's tokens, all tokens before them and the salt, so equal names mean equal KV.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kvik_engine.kv.block import Block
from kvik_engine.kv.host_pool import ContentKey
from kvik_engine.kv.prefix_cache import GroupBlocks, Hit, PrefixCache
from kvik_engine.kv.prefix_hash import digest_of
from kvik_engine.request import Branch


class ContentNames:
    """Digests of branches' blocks, and the names of blocks that the device's prefix cache can find."""

    def __init__(self, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._trails: dict[Branch, list[bytes]] = {}
        self._keys: dict[Block, ContentKey] = {}

    def digest(self, branch: Branch, index: int) -> bytes:
        """Of the branch's whole block number `index`, whose tokens must be known."""
        return digest_of(branch, index, self._trails.setdefault(branch, []), self._block_tokens)

    def key(self, block: Block) -> ContentKey | None:
        """The name of an indexed whole block; None of any other."""
        return self._keys.get(block)

    def note(self, block: Block, digest: bytes) -> None:
        self._keys[block] = (block.group, digest)

    def forget(self, block: Block) -> None:
        self._keys.pop(block, None)

    def end(self, branch: Branch) -> list[bytes]:
        """The branch is gone. Returns the digests it was asked for, the first block's first."""
        return self._trails.pop(branch, [])


class NamingCache:
    """A prefix cache that notes the names of all whole blocks it can find."""

    def __init__(self, cache: PrefixCache, names: ContentNames, block_tokens: int) -> None:
        self._cache = cache
        self._names = names
        self._block_tokens = block_tokens

    def find(self, branch: Branch, limit: int) -> Hit:
        return self._cache.find(branch, limit)

    def add(self, branch: Branch, tokens: int, tables: GroupBlocks, *, since: int) -> Sequence[Block]:
        replaced = self._cache.add(branch, tokens, tables, since=since)
        for block in replaced:
            self._names.forget(block)
        for index in range(since // self._block_tokens, tokens // self._block_tokens):
            digest = self._names.digest(branch, index)
            for table in tables:
                if table[index].entry is not None:
                    self._names.note(table[index], digest)
        return replaced

    def forget(self, block: Block) -> Sequence[Block]:
        gone = self._cache.forget(block)
        for one in gone:
            self._names.forget(one)
        return gone

    def blocks(self) -> Iterable[Block]:
        return self._cache.blocks()
