"""Which tokens of one row may be drawn: min_p, then top_k, then top_p, on a CPU.

Each filter is a threshold, so tokens of exactly equal values stay or go together and the outcome does not depend on how
anything is sorted. The most likely token always stays. No more than SORTED values are ever sorted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from kvik_engine.params import SamplingParams
from kvik_engine.sampling.cpu_screen import Tokens, Values

SORTED = 512
FIRST = 256
"""Most likely tokens that are tried first as the nucleus; then four times as many behind them, and so on."""


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
    if params.top_k is not None and params.top_k < len(kept.values):
        # The k most likely tokens, and those exactly as likely as the k-th.
        kth = len(kept.values) - params.top_k
        kept = kept.at_least(np.partition(kept.values, kth)[kth])
    if params.top_p < 1:
        kept = kept.at_least(nucleus_floor(kept.values, top, params.top_p))
    return kept


def nucleus_floor(values: Values, top: np.float32, share: float) -> np.float32:
    """The smallest value among the fewest likely tokens whose probabilities reach `share` (arXiv 1904.09751).

    Splits at the best so many values, goes on in the part where the floor lies, and sorts that once it is small.
    """
    lacking = share * float(np.exp(values - top).sum())
    pool, best = values, FIRST
    while len(pool) > SORTED:
        best = min(best, len(pool) // 2)
        split = len(pool) - best
        parts = np.partition(pool, split)
        mass = float(np.exp(parts[split:] - top).sum())
        if mass >= lacking:
            pool = parts[split:]
        else:
            pool = parts[:split]
            lacking -= mass
            best *= 4
    ordered = np.sort(pool)[::-1]
    masses = np.exp(ordered - top, dtype=np.float64)
    inside = int((masses.cumsum() - masses < lacking).sum())
    floor: np.float32 = ordered[max(inside, 1) - 1]
    return floor
