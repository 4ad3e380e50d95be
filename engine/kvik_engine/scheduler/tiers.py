"""Length tiers: within a class and priority, short prompts pass long ones, but not for ever. Pure.

A request's turn is its arrival plus a delay that grows with what there is to compute. Turns are fixed when a request
comes, so a long prompt is passed only by shorter ones that come within its delay: none starves, nothing is resorted.
"""

from __future__ import annotations

MEDIUM_CHUNKS = 4
DELAY_SECONDS = (0.0, 0.5, 2.0)
"""Of short, medium and long prompts, at least."""
TIERS = len(DELAY_SECONDS)
STRETCH = 2.0
"""A prompt beside which shorter ones are computed gets half of the steps (Scheduler._plan_head) and so takes twice its
time. Were its delay shorter, those who come later would wait until all of it is computed."""
FIRST_RATE = 500.0
"""Prompt tokens a second, before steps full of prompts were measured: of a slow device, since on a quick one short
prompts are soon done and hold up nobody. Prompts long enough for a delay fill steps, so it is soon known."""


def tier_of(tokens: int, chunk: int) -> int:
    """0 for a prompt that one prefill chunk computes, 1 up to four chunks, 2 beyond. Cached `tokens` do not count."""
    if tokens <= chunk:
        return 0
    return 1 if tokens <= MEDIUM_CHUNKS * chunk else 2


def turn_of(arrival: float, tier: int, tokens: int, rate: float | None) -> float:
    """`tokens` are to be computed, at `rate` tokens a second if that is known: what the device computes when it is full
    of prompts, since what it did on a quiet day would put a long prompt off for minutes."""
    if tier == 0:
        return arrival
    return arrival + max(DELAY_SECONDS[tier], STRETCH * tokens / (rate or FIRST_RATE))
