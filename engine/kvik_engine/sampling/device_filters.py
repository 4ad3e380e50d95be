"""Which tokens may be drawn: min_p, then top_k, then top_p, on an accelerator. What may not is set to -inf.

Each filter is a threshold, so tokens of exactly equal logits stay or go together and the outcome does not depend on how
a device sorts. Nothing is sorted, and nothing waits for the host: a threshold is found digit by digit. The most likely
token always stays.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from kvik_engine.params import SamplingParams

_DIGITS = ((21, 11), (10, 11), (0, 10))
"""Of a 32-bit number, from the highest: (shift, bits)."""
_ONE = 1 << 50
"""Probability 1 in fixed point: integers add up to the same sum in any order."""


def apply_filters(logits: Tensor, params: Sequence[SamplingParams]) -> None:
    """In place on temperature-scaled logits, fp32 [rows, vocabulary]."""
    _min_p(logits, params)
    _top_k(logits, params)
    _top_p(logits, params)


def _min_p(logits: Tensor, params: Sequence[SamplingParams]) -> None:
    """Keep tokens at least min_p times as likely as the most likely one (arXiv 2407.01082)."""
    if all(p.min_p == 0 for p in params):
        return
    floors = [math.log(p.min_p) if p.min_p > 0 else -math.inf for p in params]
    floor = logits.amax(dim=-1, keepdim=True) + torch.tensor(floors, device=logits.device)[:, None]
    logits.masked_fill_(logits < floor, -math.inf)


def _top_k(logits: Tensor, params: Sequence[SamplingParams]) -> None:
    """Keep the k most likely tokens, and those exactly as likely as the k-th."""
    at = [i for i, p in enumerate(params) if p.top_k is not None and p.top_k < logits.shape[1]]
    if not at:
        return
    rows = torch.tensor(at, device=logits.device)
    some = logits[rows]
    k = torch.tensor([params[i].top_k or 1 for i in at], device=logits.device)
    floor = floor_of_weight(some, torch.ones_like(some, dtype=torch.int64), k[:, None])
    logits[rows] = some.masked_fill_(some < floor, -math.inf)


def _top_p(logits: Tensor, params: Sequence[SamplingParams]) -> None:
    """Keep the fewest most likely tokens whose probabilities reach top_p (arXiv 1904.09751)."""
    at = [i for i, p in enumerate(params) if p.top_p < 1]
    if not at:
        return
    rows = torch.tensor(at, device=logits.device)
    some = logits[rows]
    share = torch.tensor([params[i].top_p for i in at], dtype=torch.float64, device=logits.device)[:, None]
    weights = some.softmax(dim=-1).mul_(_ONE).long()
    wanted = (share * weights.sum(dim=-1, keepdim=True)).ceil_().long().clamp_(min=1)
    logits[rows] = some.masked_fill_(some < floor_of_weight(some, weights, wanted), -math.inf)


def floor_of_weight(values: Tensor, weights: Tensor, wanted: Tensor) -> Tensor:
    """The largest value such that it and all larger ones of its row weigh at least `wanted`: fp32 [rows, 1].

    fp32 values and int64 weights [rows, n], int64 wanted [rows, 1], at least 1 and at most the row's sum.
    """
    numbers = _ordered(values)
    found = torch.zeros_like(wanted)
    for shift, bits in _DIGITS:
        digits = (numbers >> shift) & ((1 << bits) - 1)
        inside = numbers >> (shift + bits) == found >> (shift + bits)
        sums = torch.zeros((values.shape[0], 1 << bits), dtype=torch.int64, device=values.device)
        sums.scatter_add_(1, digits, weights * inside)
        from_here = sums.flip(1).cumsum(1).flip(1)
        digit = (from_here >= wanted).sum(dim=1, keepdim=True) - 1
        wanted = wanted - from_here.gather(1, digit) + sums.gather(1, digit)
        found = found | (digit << shift)
    return _value(found)


def _ordered(values: Tensor) -> Tensor:
    """fp32 -> int64 in [0, 2^32) of the same order."""
    bits = values.contiguous().view(torch.int32).long()
    return torch.where(bits < 0, ~bits, bits + (1 << 31))


def _value(number: Tensor) -> Tensor:
    """The fp32 that `_ordered` made `number` of."""
    bits = torch.where(number >= 1 << 31, number - (1 << 31), ~number)
    return bits.to(torch.int32).view(torch.float32)
