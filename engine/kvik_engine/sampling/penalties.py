"""What changes logits before a token is chosen: minimum length, bias, and penalties on tokens already there."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kvik_engine.sampling.batch import SamplingBatch, SamplingRow, penalised


def mask_stop_tokens(logits: Tensor, batch: SamplingBatch) -> None:
    """In place: no stop token before min_tokens outputs. fp32 [rows, vocabulary]."""
    at: list[int] = []
    ids: list[int] = []
    for index, (row, position) in enumerate(zip(batch.rows, batch.positions, strict=True)):
        if position < row.params.min_tokens:
            at += [index] * len(row.params.stop_token_ids)
            ids += row.params.stop_token_ids
    if at:
        places = torch.tensor((at, ids), device=logits.device)
        logits[places[0], places[1]] = float("-inf")


def add_bias(logits: Tensor, rows: Sequence[SamplingRow]) -> None:
    """In place: logit_bias is added to its tokens."""
    at: list[int] = []
    ids: list[int] = []
    values: list[float] = []
    for index, row in enumerate(rows):
        for token, bias in row.params.logit_bias:
            at.append(index)
            ids.append(token)
            values.append(bias)
    if at:
        places = torch.tensor((at, ids), device=logits.device)
        bias_values = torch.tensor(values, dtype=torch.float32, device=logits.device)
        logits.index_put_((places[0], places[1]), bias_values, accumulate=True)


def apply_penalties(logits: Tensor, batch: SamplingBatch) -> None:
    """In place, for the rows that have penalties, and there for the tokens that they know.

    Repetition (arXiv 1909.05858): logits of tokens in prompt or output are divided by it if positive, else multiplied.
    Presence and frequency (OpenAI): subtracted once, and once per occurrence, for tokens in the output only.
    Counts come from the row's tokens at each step, so that preemption and forks have nothing to restore.
    """
    chosen = [index for index, row in enumerate(batch.rows) if penalised(row.params)]
    if not chosen:
        return
    rows = [batch.rows[index] for index in chosen]
    device, vocabulary = logits.device, logits.shape[1]

    def column(values: list[int] | list[float], dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.tensor(values, dtype=dtype, device=device)[:, None]

    places = torch.arange(batch.tokens.shape[1], device=device)
    known = places < column([batch.lengths[index] for index in chosen], torch.int64)
    output = known & (places >= column([row.prompt_length for row in rows], torch.int64))
    # Behind a row's end stands its first token again: whoever writes a token's logit twice writes the same.
    ids = torch.where(known, batch.tokens, batch.tokens[:, :1])
    counts = torch.zeros((len(rows), vocabulary), device=device).scatter_add_(1, ids, output.float()).gather(1, ids)
    at = column(chosen, torch.int64)
    repetition = column([row.params.repetition_penalty for row in rows])
    frequency = column([row.params.frequency_penalty for row in rows])
    presence = column([row.params.presence_penalty for row in rows])
    changed = logits[at, ids]
    changed = torch.where(changed > 0, changed / repetition, changed * repetition)
    logits[at, ids] = changed - (counts * frequency + (counts > 0) * presence)
