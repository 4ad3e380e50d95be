"""Gather one step's inputs from the rows: packed tokens, positions, cache slots, and which rows sample."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kvik_engine.attention.backend import AttentionBatch
from kvik_engine.runner.rows import RowTable
from kvik_engine.sampling.batch import SamplingBatch, SamplingRow
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
    places: Tensor
    """int64 [rows that sample]: where each sample is appended (RowTable.append_tokens)."""
    batch: SamplingBatch


def gather_inputs(works: Sequence[RowWork], rows: RowTable, windows: Sequence[int | None]) -> StepInputs:
    """`works` is not empty; `windows` are those of the KV groups. A row's last sample lies behind its other tokens in
    the same table, so that a work `from_last_sample` is gathered like any other.

    Indices are computed on the host, where small arrays cost little; the device only looks up tokens and tables.
    """
    device = rows.tokens.device
    work_rows, starts, lengths, *_ = zip(*works, strict=True)
    row_ids, first, count = np.array(work_rows), np.array(starts), np.array(lengths)
    ends = first + count
    query_starts = np.zeros(len(works) + 1, dtype=np.int64)
    count.cumsum(out=query_starts[1:])
    row_of_token = row_ids.repeat(count)
    positions = np.arange(query_starts[-1]) + (first - query_starts[:-1]).repeat(count)
    at_places, at_positions, at_rows = _to_device(
        device, rows.token_places(row_of_token, positions), positions, row_ids
    )
    on_device = {
        "query_starts": torch.from_numpy(query_starts.astype(np.int32)).to(device),
        "seq_lens": torch.from_numpy(ends.astype(np.int32)).to(device),
    }
    widest = -(-int(ends.max()) // rows.block_tokens)
    slots = rows.slots(row_of_token, positions)
    return StepInputs(
        token_ids=rows.tokens.take(at_places).long(),
        positions=at_positions,
        attention=[
            AttentionBatch(
                starts=starts,
                lengths=lengths,
                block_tables=table[:, :widest].index_select(0, at_rows),
                slots=torch.from_numpy(own_slots).to(device),
                window=window,
                **on_device,
            )
            for table, own_slots, window in zip(rows.block_tables, slots, windows, strict=True)
        ],
    )


def gather_sampling(works: Sequence[RowWork], rows: RowTable) -> SamplingInputs | None:
    """None when no row samples: every prompt of the step is still incomplete."""
    _, starts, lengths, _, _, sampled_rows = zip(*works, strict=True)
    sampling = list(chain.from_iterable(sampled_rows))
    if not sampling:
        return None
    count = np.array(lengths)
    samples = np.array([len(own) for own in sampled_rows])
    known = (np.array(starts) + count).repeat(samples)
    last_tokens = count.cumsum()[samples > 0] - 1
    source = np.arange(len(last_tokens)).repeat(samples[samples > 0])
    at_last, at_source, at_places = _to_device(
        rows.tokens.device, last_tokens, source, rows.token_places(np.array(sampling), known)
    )
    states = [rows[row] for row in sampling]
    described = [
        SamplingRow(state.params, state.choice, state.prompt_length, length)
        for state, length in zip(states, known.tolist(), strict=True)
    ]
    penalised = [index for index, state in enumerate(states) if state.penalised]
    return SamplingInputs(
        last_tokens=at_last,
        source=None if len(last_tokens) == len(sampling) else at_source,
        rows=sampling,
        places=at_places,
        batch=SamplingBatch(rows=described, tokens=_tokens_of_penalised(penalised, sampling, described, rows)),
    )


def _tokens_of_penalised(
    penalised: Sequence[int], sampling: Sequence[Row], described: Sequence[SamplingRow], rows: RowTable
) -> Tensor:
    """See SamplingBatch.tokens. `penalised` are indices into the others."""
    if not penalised:
        return torch.zeros((0, 0), dtype=torch.int64, device=rows.tokens.device)
    at = torch.tensor([sampling[index] for index in penalised]).to(rows.tokens.device)
    return rows.tokens[at, : max(described[index].length for index in penalised)].long()


def _to_device(device: torch.device, *arrays: NDArray[np.int64]) -> Sequence[Tensor]:
    """int64 arrays, in one transfer."""
    return torch.from_numpy(np.concatenate(arrays)).to(device).split_with_sizes([len(array) for array in arrays])
