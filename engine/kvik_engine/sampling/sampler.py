"""Choose each row's next token.

Order: raw logprobs, min_tokens, logit_bias, penalties, then greedy or temperature, min_p, top_k, top_p, noise.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kvik_engine.sampling.batch import Samples, SamplingBatch, SamplingRow
from kvik_engine.sampling.filters import apply_filters
from kvik_engine.sampling.logprobs import raw_logprobs
from kvik_engine.sampling.noise import gumbel, stream_key
from kvik_engine.sampling.penalties import add_bias, apply_penalties, mask_stop_tokens


def sample(logits: Tensor, batch: SamplingBatch) -> Samples:
    """fp32 [rows, vocabulary], spoilt here. No operation mixes rows."""
    # A sum is not finite as soon as one of its terms is not, and costs one pass.
    finite = logits.sum(dim=-1).isfinite()
    raw = raw_logprobs(logits, batch.rows)
    mask_stop_tokens(logits, batch.rows)
    add_bias(logits, batch.rows)
    apply_penalties(logits, batch)
    tokens = _choose(logits, batch.rows).masked_fill_(~finite, 0)
    return Samples(
        tokens=tokens,
        finite=finite,
        logprobs=None if raw is None else raw.of(tokens),
        top_logprobs=None if raw is None else raw.top_values,
        top_tokens=None if raw is None else raw.top_tokens,
    )


def _choose(logits: Tensor, rows: Sequence[SamplingRow]) -> Tensor:
    """int64 [rows]."""
    drawing = [index for index, row in enumerate(rows) if not row.params.greedy]
    if not drawing:
        return logits.argmax(dim=-1)
    if len(drawing) == len(rows):
        return _draw(logits, rows)
    tokens = logits.argmax(dim=-1)
    at = torch.tensor(drawing, device=logits.device)
    tokens[at] = _draw(logits[at], [rows[index] for index in drawing])
    return tokens


def _draw(logits: Tensor, rows: Sequence[SamplingRow]) -> Tensor:
    """The Gumbel-max trick: exact samples of the filtered distribution."""
    logits /= torch.tensor([row.params.temperature for row in rows], device=logits.device)[:, None]
    apply_filters(logits, [row.params for row in rows])
    keys = [stream_key(row.params.seed, row.choice, row.position) for row in rows]
    noise = gumbel(torch.tensor(keys, dtype=torch.int64, device=logits.device), logits.shape[1])
    return logits.add_(noise).argmax(dim=-1)
