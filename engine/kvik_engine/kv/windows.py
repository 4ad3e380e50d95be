"""Which blocks of a KV group branches and hits need, and how many. Pure arithmetic.

A full or latent group needs every block. A window group needs those that cover its last `window` tokens and what one
step computes: blocks wholly behind the window are given back as the branch moves on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kvik_engine.step import KVGroup


def first_needed(group: KVGroup, tokens: int) -> int:
    """Index of the first block that is read once `tokens` tokens are computed: those before it are never read again."""
    return 0 if group.window is None else max(0, tokens - group.window) // group.block_tokens


def blocks_of_hit(
    groups: Sequence[KVGroup], there: Iterable[Sequence[bool]], *, first: int = 0, runs: Sequence[int] | None = None
) -> int:
    """How many whole blocks from the beginning make a hit: what the next token reads must be there in every group.

    `there` says for each block from number `first` on which groups have it; asked no further than where a group
    without a window lacks one. `runs` is how many blocks up to `first` each group has in a row.
    """
    whole, size = first, groups[0].block_tokens
    lengths = list(runs) if runs is not None else [0] * len(groups)
    for blocks, known in enumerate(there, start=first + 1):
        lengths = [length + 1 if one else 0 for length, one in zip(lengths, known, strict=True)]
        needed = [blocks - first_needed(group, blocks * size) for group in groups]
        if all(length >= least for length, least in zip(lengths, needed, strict=True)):
            whole = blocks
        elif any(group.window is None and not length for group, length in zip(groups, lengths, strict=True)):
            break
    return whole


def most_at_once(group: KVGroup, lengths: Sequence[int], *, shared: int, step_tokens: int) -> int:
    """Blocks that branches of these lengths hold at once, when they share the blocks of their first `shared` tokens.

    A step computes at most `step_tokens` tokens of all of them together.
    """
    size = group.block_tokens
    common = shared // size
    blocks = common + sum(-(-length // size) - common for length in lengths)
    if group.window is None:
        return blocks
    # Per branch the window touches one block more than fit into it, and so does the chunk.
    return min(blocks, len(lengths) * (-(-group.window // size) + 2) + -(-step_tokens // size))
