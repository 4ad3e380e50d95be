"""Which tokens may be drawn: min_p, then top_k, then top_p. What may not is set to -inf.

Each filter is a threshold, so tokens of exactly equal logits stay or go together and the outcome does not depend on how
a device sorts. The most likely token always stays.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from kvik_engine.params import SamplingParams

FIRST_CANDIDATES = 256
"""Most likely tokens that top_p looks at before it sorts the whole vocabulary."""


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
    vocabulary = logits.shape[1]
    at = [i for i, p in enumerate(params) if p.top_k is not None and p.top_k < vocabulary]
    if not at:
        return
    k = [params[i].top_k or vocabulary for i in at]
    rows = torch.tensor(at, device=logits.device)
    some = logits[rows]
    best = some.topk(max(k), dim=-1).values
    kth = best.gather(1, torch.tensor(k, device=logits.device)[:, None] - 1)
    logits[rows] = some.masked_fill_(some < kth, -math.inf)


def _top_p(logits: Tensor, params: Sequence[SamplingParams]) -> None:
    """Keep the fewest most likely tokens whose probabilities reach top_p (arXiv 1904.09751)."""
    at = [i for i, p in enumerate(params) if p.top_p < 1]
    if not at:
        return
    rows = torch.tensor(at, device=logits.device)
    some = logits[rows]
    wanted = torch.tensor([params[i].top_p for i in at], device=logits.device)[:, None]
    logits[rows] = some.masked_fill_(some < _nucleus_floor(some, wanted), -math.inf)


def _nucleus_floor(logits: Tensor, wanted: Tensor) -> Tensor:
    """The smallest logit inside each row's nucleus: fp32 [rows, 1].

    On a CPU the few most likely tokens usually suffice, and sorting all would take longer than the model's own step; on
    an accelerator asking whether they do would stall the stream.
    """
    total = logits.logsumexp(dim=-1, keepdim=True)
    if logits.device.type == "cpu" and logits.shape[1] > FIRST_CANDIDATES:
        best = logits.topk(FIRST_CANDIDATES, dim=-1).values
        if bool(((best - total).exp().sum(dim=-1, keepdim=True) >= wanted).all()):
            return _floor_of_sorted(best, total, wanted)
    return _floor_of_sorted(logits.sort(dim=-1, descending=True).values, total, wanted)


def _floor_of_sorted(best: Tensor, total: Tensor, wanted: Tensor) -> Tensor:
    """A token is inside while the tokens before it have not reached the wanted probability."""
    probabilities = (best - total).exp()
    before = probabilities.cumsum(dim=-1) - probabilities
    inside = (before < wanted).sum(dim=-1, keepdim=True).clamp_(min=1)
    return best.gather(1, inside - 1)
