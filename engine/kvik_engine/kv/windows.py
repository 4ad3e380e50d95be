"""How many blocks of a KV group branches need. Pure arithmetic.

A full or latent group needs every block. A window group needs those that cover its last `window` tokens and what one
step computes: blocks wholly behind the window are given back as the branch moves on.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvik_engine.step import KVGroup


def first_needed(group: KVGroup, tokens: int) -> int:
    """Index of the first block that is read once `tokens` tokens are computed: those before it are never read again."""
    return 0 if group.window is None else max(0, tokens - group.window) // group.block_tokens


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
