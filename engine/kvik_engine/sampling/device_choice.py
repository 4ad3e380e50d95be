"""Choose tokens on an accelerator: all rows at once, and nothing waits for the host."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kvik_engine.sampling.batch import SamplingBatch, SamplingRow
from kvik_engine.sampling.device_filters import apply_filters
from kvik_engine.sampling.noise import gumbel, stream_key


def finite_rows(logits: Tensor) -> Tensor:
    """bool [rows]: whether none of a row's logits is NaN or infinite."""
    # A sum is not finite as soon as one of its terms is not, and costs one pass.
    return logits.sum(dim=-1).isfinite()


def choose(logits: Tensor, batch: SamplingBatch, finite: Tensor) -> Tensor:
    """fp32 [rows, vocabulary], spoilt -> int64 [rows], 0 where a row is not finite. Equal scores: the lowest id."""
    return _choose(logits, batch).masked_fill_(~finite, 0)


def _choose(logits: Tensor, batch: SamplingBatch) -> Tensor:
    rows, positions = batch.rows, batch.positions
    drawing = [index for index, row in enumerate(rows) if not row.params.greedy]
    if not drawing:
        return logits.argmax(dim=-1)
    if len(drawing) == len(rows):
        return _draw(logits, rows, positions)
    tokens = logits.argmax(dim=-1)
    at = torch.tensor(drawing, device=logits.device)
    tokens[at] = _draw(logits[at], [rows[index] for index in drawing], [positions[index] for index in drawing])
    return tokens


def _draw(logits: Tensor, rows: Sequence[SamplingRow], positions: Sequence[int]) -> Tensor:
    """The Gumbel-max trick: exact samples of the filtered distribution."""
    logits /= torch.tensor([row.params.temperature for row in rows], device=logits.device)[:, None]
    apply_filters(logits, [row.params for row in rows])
    keys = [stream_key(row.params.seed, row.choice, at) for row, at in zip(rows, positions, strict=True)]
    noise = gumbel(torch.tensor(keys, dtype=torch.int64, device=logits.device), logits.shape[1])
    return logits.add_(noise).argmax(dim=-1)
