"""How much of a step batch requests get while an interactive one waits or computes its prompt. Pure.

A step takes as long as all its rows together, and the interactive request's first token waits for it. So batch rows
take turns meanwhile. They are limited, never stopped.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvik_engine.request import Branch, Request

INTERACTIVE, BATCH = 0, 2
BATCH_SHARE = 0.25
"""Of the step's rows and of its prefill tokens, at least one of each."""


def rows_in_turn(decodes: Sequence[Branch], head: Request | None, max_rows: int) -> list[Branch]:
    """`decodes` with as many batch rows as their share allows, those that stepped longest ago; the head is no batch."""
    batch = [branch for branch in decodes if branch.request.slo_class == BATCH and branch.request is not head]
    spare = len(batch) - max(1, int(max_rows * BATCH_SHARE))
    if spare <= 0:
        return list(decodes)
    batch.sort(key=lambda branch: branch.last_step or 0)
    left_out = set(batch[len(batch) - spare :])
    return [branch for branch in decodes if branch not in left_out]


def prefill_share(prefill_tokens: int) -> int:
    """What batch prompts may take of the prefill tokens that are left."""
    return min(prefill_tokens, max(1, int(prefill_tokens * BATCH_SHARE)))
