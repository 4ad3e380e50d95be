"""Which tokens of one row may be drawn: min_p, then top_k, then top_p, on a CPU.

Each filter is a floor, so tokens of exactly equal values stay or go together and the outcome does not depend on how
anything is sorted. The most likely token always stays.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray

from kvik_engine.params import SamplingParams
from kvik_kernels.cpu.filters import Filters
from kvik_kernels.cpu.library import LibraryUnavailable, load_library

Values = NDArray[np.float32]
Tokens = NDArray[np.int64]

_REACHES = (4.0, 8.0, 16.0)
"""How far below the most likely one values are looked at first: to compare a whole vocabulary takes a tenth of the time
in which it is sorted."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """Tokens that may be drawn, by rising id."""

    values: Values
    """Logits over temperature."""
    tokens: Tokens | None
    """None: the whole vocabulary."""
    top: float
    """The largest value."""

    def at_least(self, floor: float) -> Candidates:
        return Candidates(*at_least(self.values, self.tokens, floor), self.top)


def candidates(values: Values, params: SamplingParams) -> Candidates:
    """Of one row's logits over temperature, fp32 [vocabulary]. All of them where every token is masked."""
    top = float(values.max())
    kept = Candidates(values, None, top)
    if top == -np.inf:
        return kept
    if params.min_p > 0:
        # Tokens at least min_p times as likely as the most likely one (arXiv 2407.01082).
        kept = kept.at_least(float(np.float32(top) + np.float32(math.log(params.min_p))))
    if params.top_k is not None and params.top_k < len(kept.values):
        kept = kept.at_least(floor_of_count(kept.values, top, params.top_k))
    if params.top_p < 1:
        # The fewest likely tokens whose probabilities reach top_p (arXiv 1904.09751).
        kept = kept.at_least(floor_of_share(kept.values, top, params.top_p))
    return kept


def at_least(values: Values, tokens: Tokens | None, floor: float) -> tuple[Values, Tokens]:
    """(values, tokens) of those that are at least the floor; `tokens` None means 0, 1, 2, ..."""
    if (kernels := compiled()) is not None:
        ids = None if tokens is None else torch.from_numpy(tokens)
        kept = kernels.at_least(torch.from_numpy(values), ids, floor)
        return kept[0].numpy(), kept[1].numpy()
    places = np.flatnonzero(values >= np.float32(floor))
    return values[places], places if tokens is None else tokens[places]


def mass(values: Values, top: float) -> float:
    """The sum of exp(value - top); `top` is the largest value, finite."""
    if (kernels := compiled()) is not None:
        return kernels.mass(torch.from_numpy(values), top)
    return float(np.exp(values - np.float32(top)).sum(dtype=np.float64))


def floor_of_count(values: Values, top: float, count: int) -> float:
    """What the `count` largest values reach, those equal to the last of them, and no other that is not masked; `top`
    is the largest."""
    if (kernels := compiled()) is not None:
        return kernels.floor_of_count(torch.from_numpy(values), top, count)
    best = _best(values, top, lambda some: len(some) >= count)
    place = max(0, len(best) - count)
    return float(np.partition(best, place)[place])


def floor_of_share(values: Values, top: float, share: float) -> float:
    """What the fewest of the largest values reach whose mass is `share` of that of all; `top` is the largest."""
    if (kernels := compiled()) is not None:
        return kernels.floor_of_share(torch.from_numpy(values), top, share)
    wanted = share * mass(values, top)
    best = np.sort(_best(values, top, lambda some: mass(some, top) >= wanted))[::-1]
    masses = np.exp(best - np.float32(top), dtype=np.float64)
    taken = int((masses.cumsum() - masses < wanted).sum())
    return float(best[max(taken, 1) - 1])


@lru_cache(maxsize=1)
def compiled() -> Filters | None:
    """The compiled ones, where this CPU has them: numpy takes several times as long."""
    try:
        return Filters(load_library())
    except LibraryUnavailable:
        return None


def _best(values: Values, top: float, enough: Callable[[Values], bool]) -> Values:
    """Those at or above some value, of which there are enough, if all of them are."""
    for reach in _REACHES:
        some = values[values >= np.float32(top) - np.float32(reach)]
        if enough(some):
            return some
    return values
