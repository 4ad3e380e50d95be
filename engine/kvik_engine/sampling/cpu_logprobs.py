"""The most likely tokens of rows of logits, and what their exponentials add up to, on a CPU: a row at a time in its
cache."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from kvik_engine.sampling.cpu_filters import Tokens, Values, at_least, floor_of_count, mass


def most_likely(logits: Tensor, most: int) -> tuple[Tensor, Tensor, Tensor]:
    """fp32 [rows, vocabulary] -> the logarithm of each row's sum of exponentials [rows, 1], and its `most` largest
    values, falling, with their tokens, [rows, most] each; of equal values the lower token is first. All are NaN and
    token 0 in a row that is not finite."""
    totals = np.full((len(logits), 1), np.nan, dtype=np.float32)
    values = np.full((len(logits), most), np.nan, dtype=np.float32)
    tokens = np.zeros((len(logits), most), dtype=np.int64)
    for place, row in enumerate(logits.numpy()):
        top = float(row.max())
        if not (math.isfinite(top) and np.isfinite(row.min())):
            continue
        totals[place] = top + math.log(mass(row, top))
        if most:
            values[place], tokens[place] = _largest(row, top, most)
    return torch.from_numpy(totals), torch.from_numpy(values), torch.from_numpy(tokens)


def _largest(row: Values, top: float, most: int) -> tuple[Values, Tokens]:
    values, tokens = at_least(row, None, floor_of_count(row, top, most))
    order = np.argsort(-values, kind="stable")[:most]
    return values[order], tokens[order]
