"""The books of the KV cache must balance: free + cached + owned = total, and every count has its reason."""

from __future__ import annotations

from collections import Counter

from kvik_engine.kv.block import Block
from kvik_engine.kv.manager import KVManager


class BooksDoNotBalance(RuntimeError):
    """A block or a slot was lost, given twice or counted wrongly: a bug."""


def check_books(kv: KVManager) -> None:
    """Compare every block's state with who really holds it; BooksDoNotBalance says what differs. O(blocks)."""
    pool = kv.pool
    holders: Counter[Block] = Counter()
    for holding in kv.holdings.values():
        for table, first in zip(holding.tables, holding.firsts, strict=True):
            holders.update(table[first:])
    pins = Counter(kv.pins)
    free, cached, found = set(pool.free_blocks()), set(pool.cached_blocks()), set(kv.found_blocks())
    wrong = [
        *(f"{block}: {holders[block]} tables have it" for block in pool.blocks if block.holders != holders[block]),
        *(f"{block}: {pins[block]} steps or copies need it" for block in pool.blocks if block.pins != pins[block]),
        *(f"{block}: free with content" for block in free if block.entry is not None),
        *(f"{block}: cached without content" for block in cached if block.entry is None),
        *(
            f"{block}: only the block knows that it is indexed"
            for block in pool.blocks
            if block.entry and block not in found
        ),
        *(f"{block}: only the prefix cache knows that it is indexed" for block in found if block.entry is None),
        *(
            f"{block}: in {(block in free) + (block in cached) + bool(holders[block] or pins[block])} states"
            for block in pool.blocks
            if (block in free) + (block in cached) + bool(holders[block] or pins[block]) != 1
        ),
    ]
    if len(free) != pool.free or len(cached) != pool.cached:
        wrong.append(f"free {pool.free}, listed {len(free)}; cached {pool.cached}, listed {len(cached)}")
    if pool.free + pool.cached + pool.owned != pool.total:
        wrong.append(f"free {pool.free} + cached {pool.cached} + owned {pool.owned} != total {pool.total}")
    if wrong:
        raise BooksDoNotBalance("; ".join(wrong))


def check_idle(kv: KVManager) -> None:
    """As check_books, and nothing is owned: to be called when no request is left and all steps are settled."""
    check_books(kv)
    if kv.pool.owned:
        raise BooksDoNotBalance(f"{kv.pool.owned} blocks are owned by nobody")
