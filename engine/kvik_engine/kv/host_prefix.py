"""Which blocks of a prompt's beginning lie in a lower tier, behind those that the device has. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from kvik_engine.kv.block import SCRATCH, Block
from kvik_engine.kv.content_names import ContentNames
from kvik_engine.kv.host_pool import ContentKey, Slot
from kvik_engine.kv.prefix_cache import Hit
from kvik_engine.kv.windows import blocks_of_hit, first_needed
from kvik_engine.request import Branch
from kvik_engine.step import KVGroup

Place = Slot | ContentKey
"""Where a block's content is: on the host, or under this name on the disk."""
Places = tuple[tuple[Place | None, ...], ...]
"""One table per KV group; None for blocks behind the window."""


def places_behind(
    branch: Branch,
    hit: Hit,
    groups: Sequence[KVGroup],
    names: ContentNames,
    find: Callable[[ContentKey], Place | None],
) -> Places:
    """Where the branch's blocks behind the whole ones of `hit` are; empty tables when `find` knows no more of them.

    As with hits on the device, full groups need every block and window groups those within the window at the end. At
    least one token is left to compute.
    """
    size = groups[0].block_tokens
    first = hit.whole_tokens // size
    tables: list[list[Place | None]] = [[] for _ in groups]

    def there() -> Iterator[list[bool]]:
        for index in range(first, (len(branch.tokens) - 1) // size):
            digest = names.digest(branch, index)
            for number, table in enumerate(tables):
                table.append(find((number, digest)))
            yield [table[-1] is not None for table in tables]

    runs = [_run_at_the_end(blocks) for blocks in hit.blocks]
    whole = blocks_of_hit(groups, there(), first=first, runs=runs)
    needed = [first_needed(group, whole * size) - first for group in groups]
    return tuple(
        tuple(place if n >= least else None for n, place in enumerate(table[: whole - first]))
        for table, least in zip(tables, needed, strict=True)
    )


def _run_at_the_end(blocks: Sequence[Block]) -> int:
    """How many blocks at the end are there."""
    return next((n for n, block in enumerate(reversed(blocks)) if block is SCRATCH), len(blocks))
