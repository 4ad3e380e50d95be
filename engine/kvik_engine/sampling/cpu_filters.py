"""Which tokens of one row may be drawn: min_p, then top_k, then top_p, on a CPU.

Each filter is a threshold, so tokens of exactly equal values stay or go together and the outcome does not depend on how
anything is sorted. The most likely token always stays. More than SORTED values are sorted only where hardly any differ.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from kvik_engine.params import SamplingParams
from kvik_engine.sampling.cpu_screen import Tokens, Values, masses_at_least

REACHES = (4.0, 8.0, 16.0)
"""How far below the most likely one values are looked at first: to compare a whole vocabulary takes a tenth of the time
in which it is split at its best values."""
SORTED = 512
_LADDER = np.array([0.5, 1, 2, 3, 4, 5, 6, 8, 10, 12, 16, np.inf], dtype=np.float32)
"""How far below the most likely one the floor of a nucleus is looked for."""
_DOWN = np.arange(11, -1, -1, dtype=np.float32) / 12
"""Then, between what is known to lie above it and the smallest value that is left."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """Tokens that may be drawn, by rising id."""

    values: Values
    """Logits over temperature."""
    tokens: Tokens | None
    """None: the whole vocabulary."""
    top: float
    """The largest value."""

    def at_least(self, floor: np.float32) -> Candidates:
        places = np.flatnonzero(self.values >= floor)
        return Candidates(self.values[places], places if self.tokens is None else self.tokens[places], self.top)


def candidates(values: Values, params: SamplingParams) -> Candidates:
    """Of one row's logits over temperature, fp32 [vocabulary]. All of them where every token is masked."""
    top = values.max()
    kept = Candidates(values, None, float(top))
    if top == -np.inf:
        return kept
    if params.min_p > 0:
        # Tokens at least min_p times as likely as the most likely one (arXiv 2407.01082).
        kept = kept.at_least(top + np.float32(math.log(params.min_p)))
    k = params.top_k
    if k is not None and k < len(kept.values):
        # The k most likely tokens, and those exactly as likely as the k-th.
        best = best_values(kept.values, top, lambda some: len(some) >= k)
        kth = len(best) - k
        kept = kept.at_least(np.partition(best, kth)[kth])
    if params.top_p < 1:
        kept = kept.at_least(nucleus_floor(kept.values, top, params.top_p))
    return kept


def best_values(values: Values, top: np.float32, enough: Callable[[Values], bool]) -> Values:
    """Those at or above some value, of which there are enough; `top` is the largest."""
    for reach in REACHES:
        some = values[values >= top - np.float32(reach)]
        if enough(some):
            return some
    return values


def nucleus_floor(values: Values, top: np.float32, share: float) -> np.float32:
    """The smallest value among the fewest likely tokens whose probabilities reach `share` (arXiv 1904.09751).

    Looks between which of a few values the floor lies, then between which of a few there, and sorts what is left once
    it is small.
    """
    floors = top - _LADDER
    masses = masses_at_least(values, float(top), floors)
    lacking = share * float(masses[-1])
    pool, above = values, top
    while len(pool) > SORTED:
        step = min(int(np.searchsorted(masses, lacking)), len(floors) - 1)
        inside = (pool >= floors[step]) & (pool > -np.inf)  # a masked token has no part in it
        if step > 0:
            inside &= pool < floors[step - 1]
        part = pool[inside]
        if len(part) in (0, len(pool)):
            break  # nothing tells them apart but sorting
        if step > 0:
            lacking -= float(masses[step - 1])
            above = floors[step - 1]
        pool, lowest = part, part.min()
        floors = lowest + (above - lowest) * _DOWN
        masses = masses_at_least(pool, float(top), floors)
    ordered = np.sort(pool)[::-1]
    masses = np.exp(ordered - top, dtype=np.float64)
    taken = int((masses.cumsum() - masses < lacking).sum())
    floor: np.float32 = ordered[max(taken, 1) - 1]
    return floor
