"""Length tiers: within a class and priority, short prompts pass long ones, but not for ever. Pure.

A request's turn is its arrival plus a delay that grows with what there is to compute. Turns are fixed when a request
comes, so a long prompt is passed only by shorter ones that come within its delay: none starves, nothing is resorted.
"""

from __future__ import annotations

MEDIUM_CHUNKS = 4
DELAY_SECONDS = (0.0, 0.5, 2.0)
"""Of short, medium and long prompts."""


def tier_of(tokens: int, chunk: int) -> int:
    """0 for a prompt that one prefill chunk computes, 1 up to four chunks, 2 beyond. Cached `tokens` do not count."""
    if tokens <= chunk:
        return 0
    return 1 if tokens <= MEDIUM_CHUNKS * chunk else 2


def turn_of(arrival: float, tier: int) -> float:
    return arrival + DELAY_SECONDS[tier]
