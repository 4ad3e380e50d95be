"""The sampler's truth: one row after the other, every token's noise, and a full sort in fp64."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from kvik_engine.params import SamplingParams
from kvik_engine.sampling.batch import SamplingBatch, SamplingRow, penalised
from kvik_engine.sampling.noise import gumbel, stream_key


def batch_of(rows: Sequence[SamplingRow], tokens: Sequence[Sequence[int]]) -> SamplingBatch:
    """As the runner makes it; `tokens` has one sequence a row."""
    chosen = [known for row, known in zip(rows, tokens, strict=True) if penalised(row.params)]
    width = max(map(len, chosen), default=0) + 4
    padded = [[*known, *[0] * (width - len(known))] for known in chosen]
    at = torch.tensor(padded, dtype=torch.int64).reshape(len(chosen), width)
    return SamplingBatch(rows, [len(known) for known in tokens], at)


def plain_sample(logits: Tensor, row: SamplingRow, tokens: Sequence[int]) -> int:
    """The token that one row chooses behind its `tokens`; fp32 [vocabulary]. The lowest id of equal scores."""
    params, position = row.params, len(tokens) - row.prompt_length
    values = logits.clone()
    if position < params.min_tokens:
        values[list(params.stop_token_ids)] = -math.inf
    for token, bias in params.logit_bias:
        values[token] += bias
    for token in set(tokens):
        value = values[token]
        values[token] = value / params.repetition_penalty if value > 0 else value * params.repetition_penalty
    for token, count in Counter(tokens[row.prompt_length :]).items():
        values[token] -= torch.tensor(count * params.frequency_penalty) + torch.tensor(params.presence_penalty)
    if params.greedy:
        return int(values.argmax())
    values /= params.temperature
    scores = values + gumbel(torch.tensor([stream_key(params.seed, row.choice, position)]), len(values))[0]
    return int(scores.masked_fill_(~_may_be_drawn(values, params), -math.inf).argmax())


def _may_be_drawn(values: Tensor, params: SamplingParams) -> Tensor:
    """bool [vocabulary]: min_p, then top_k, then top_p; tokens as likely as the last one stay with it."""
    kept = torch.ones_like(values, dtype=torch.bool)
    if params.min_p > 0:
        kept &= values >= values.max() + math.log(params.min_p)
    if params.top_k is not None:
        best = values[kept].sort(descending=True).values
        kept &= values >= best[min(params.top_k, len(best)) - 1]
    if params.top_p < 1:
        best = values[kept].sort(descending=True).values
        probabilities = best.double().softmax(dim=0)
        before = probabilities.cumsum(dim=0) - probabilities
        kept &= values >= best[max(1, int((before < params.top_p).sum())) - 1]
    return kept
