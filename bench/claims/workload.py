"""Prompts and arrivals. Seeded, so that baseline and ours serve the same ones."""

import random
import statistics
from collections.abc import Callable, Sequence

FIRST_TOKEN, LAST_TOKEN = 1000, 40_000
"""Ordinary tokens of the embedded model."""


def prompt(tokens: int, seed: int) -> list[int]:
    """Random tokens: no two prompts of different seeds begin alike."""
    draw = random.Random(seed)
    return [draw.randint(FIRST_TOKEN, LAST_TOKEN) for _ in range(tokens)]


def paired(baseline: Callable[[], float], ours: Callable[[], float], *, rounds: int) -> list[tuple[float, float]]:
    """(baseline, ours) of each round, the one that goes first changing from round to round.

    A machine shared with others is slow for seconds on end. Two neighbours in time meet the same of it, so compare the
    two of a round, and of these comparisons take the median.
    """
    pairs = []
    for number in range(rounds):
        if number % 2:
            second, first = ours(), baseline()
        else:
            first, second = baseline(), ours()
        pairs.append((first, second))
    return pairs


def median_ratio(pairs: Sequence[tuple[float, float]]) -> float:
    """Of baseline to ours."""
    return statistics.median(baseline / ours for baseline, ours in pairs)
