"""Gather one step's inputs from the rows: packed tokens, positions, cache slots, and which rows sample."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kvik_engine.attention.backend import AttentionBatch
from kvik_engine.runner.rows import RowTable
from kvik_engine.sampling.batch import SamplingBatch, SamplingRow, penalised
from kvik_engine.step import Row, RowWork


@dataclass(frozen=True, slots=True)
class StepInputs:
    """What the model takes; tensors on the device."""

    token_ids: Tensor
    """int64 [tokens]."""
    positions: Tensor
    """int64 [tokens]."""
    attention: Sequence[AttentionBatch]
    """By KV group."""


@dataclass(frozen=True, slots=True)
class SamplingInputs:
    """Which tokens' hidden states give logits, and which rows sample from them."""

    last_tokens: Tensor
    """int64 [works that sample]: index of each one's last token in the step."""
    source: Tensor | None
    """int64 [rows that sample]: index into last_tokens; None when it would count 0, 1, 2, ... (no forks)."""
    rows: Sequence[Row]
    positions: Sequence[int]
    """Where each row's sample is appended: also the number of tokens that it knows before."""
    batch: SamplingBatch


def gather_inputs(works: Sequence[RowWork], rows: RowTable, windows: Sequence[int | None]) -> StepInputs:
    """`works` is not empty; `windows` are those of the KV groups. A row's last sample lies behind its other tokens in
    the same table, so that a work `from_last_sample` is gathered like any other."""
    device = rows.tokens.device
    starts = np.array([work.start for work in works])
    lengths = np.array([work.length for work in works])
    query_starts = np.concatenate(([0], np.cumsum(lengths)))
    row_of_token = np.repeat([work.row for work in works], lengths)
    positions = np.arange(query_starts[-1]) - np.repeat(query_starts[:-1] - starts, lengths)
    places = torch.from_numpy(np.stack((row_of_token, positions))).to(device)
    widest = -(-int((starts + lengths).max()) // rows.block_tokens)
    row_of_work = torch.tensor([work.row for work in works]).to(device)
    on_device = {
        "query_starts": torch.from_numpy(query_starts.astype(np.int32)).to(device),
        "seq_lens": torch.from_numpy((starts + lengths).astype(np.int32)).to(device),
    }
    start_list, length_list = starts.tolist(), lengths.tolist()
    block_of_token, offsets = places[1] // rows.block_tokens, places[1] % rows.block_tokens
    return StepInputs(
        token_ids=rows.tokens[places[0], places[1]].long(),
        positions=places[1],
        attention=[
            AttentionBatch(
                starts=start_list,
                lengths=length_list,
                block_tables=table[row_of_work, :widest],
                slots=table[places[0], block_of_token].long() * rows.block_tokens + offsets,
                window=window,
                **on_device,
            )
            for table, window in zip(rows.block_tables, windows, strict=True)
        ],
    )


def gather_sampling(works: Sequence[RowWork], rows: RowTable) -> SamplingInputs | None:
    """None when no row samples: every prompt of the step is still incomplete."""
    last_tokens: list[int] = []
    source: list[int] = []
    sampling: list[Row] = []
    described: list[SamplingRow] = []
    end = 0
    for work in works:
        end += work.length
        for row in work.sampled_rows:
            state = rows[row]
            source.append(len(last_tokens))
            sampling.append(row)
            described.append(SamplingRow(state.params, state.choice, state.prompt_length, work.start + work.length))
        if work.sampled_rows:
            last_tokens.append(end - 1)
    if not sampling:
        return None
    device = rows.tokens.device
    return SamplingInputs(
        last_tokens=torch.tensor(last_tokens).to(device),
        source=None if len(last_tokens) == len(sampling) else torch.tensor(source).to(device),
        rows=sampling,
        positions=[one.length for one in described],
        batch=SamplingBatch(rows=described, tokens=_tokens_of_penalised(sampling, described, rows)),
    )


def _tokens_of_penalised(sampling: Sequence[Row], described: Sequence[SamplingRow], rows: RowTable) -> Tensor:
    """See SamplingBatch.tokens."""
    chosen = [(row, one.length) for row, one in zip(sampling, described, strict=True) if penalised(one.params)]
    if not chosen:
        return torch.zeros((0, 0), dtype=torch.int64, device=rows.tokens.device)
    at = torch.tensor([row for row, _ in chosen]).to(rows.tokens.device)
    return rows.tokens[at, : max(length for _, length in chosen)].long()
