"""Prompts and arrivals. Seeded, so that baseline and ours serve the same ones."""

import random
import statistics
from collections.abc import Sequence

FIRST_TOKEN, LAST_TOKEN = 1000, 40_000
"""Ordinary tokens of the embedded model."""


def prompt(tokens: int, seed: int) -> list[int]:
    """Random tokens: no two prompts of different seeds begin alike."""
    draw = random.Random(seed)
    return [draw.randint(FIRST_TOKEN, LAST_TOKEN) for _ in range(tokens)]


def percentile(values: Sequence[float], percent: int) -> float:
    """Between the values beside it."""
    if len(values) == 1:
        return values[0]
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]
