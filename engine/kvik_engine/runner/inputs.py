"""Gather one step's inputs from the rows: packed tokens, positions, cache slots, and which rows sample."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from operator import add

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kvik_engine.attention.backend import AttentionBatch
from kvik_engine.runner.rows import RowTable
from kvik_engine.sampling.batch import SamplingBatch, SamplingRow
from kvik_engine.step import Row, RowWork


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


@dataclass(frozen=True, slots=True)
class StepInputs:
    """What model and sampler take; tensors on the device."""

    token_ids: Tensor
    """int64 [tokens]."""
    positions: Tensor
    """int64 [tokens]."""
    attention: Sequence[AttentionBatch]
    """By KV group."""
    sampling: SamplingInputs | None
    """None when no row samples: every prompt of the step is still incomplete."""


def gather_inputs(works: Sequence[RowWork], rows: RowTable, windows: Sequence[int | None]) -> StepInputs:
    """`works` is not empty; `windows` are those of the KV groups. A row's last sample lies behind its other tokens in
    the same table, so that a work `from_last_sample` is gathered like any other.

    Indices are computed on the host, where small arrays cost little, and go to the device in one transfer, before the
    model: one behind it would wait for it. The device only looks up tokens and tables.
    """
    work_rows, starts, lengths, _, _, sampled_rows = zip(*works, strict=True)
    row_ids, first, count = np.array((work_rows, starts, lengths))
    ends = first + count
    query_starts = np.zeros(len(works) + 1, dtype=np.int64)
    count.cumsum(out=query_starts[1:])
    row_of_token = row_ids.repeat(count)
    positions = np.arange(query_starts[-1]) + (first - query_starts[:-1]).repeat(count)
    sampling = tuple(chain.from_iterable(sampled_rows))
    samples = np.array(list(map(len, sampled_rows)))
    known = ends.repeat(samples)
    last_tokens = query_starts[1:][samples > 0] - 1
    forks = len(sampling) > len(last_tokens)
    at_tokens, at_positions, at_rows, at_last, at_source, at_samples, at_starts, at_ends, *at_slots = _to_device(
        rows.tokens.device,
        rows.token_places(row_of_token, positions),
        positions,
        row_ids,
        last_tokens,
        np.arange(len(last_tokens)).repeat(samples[samples > 0]) if forks else _NOTHING,
        rows.token_places(np.array(sampling), known) if sampling else _NOTHING,
        query_starts,
        ends,
        *rows.slots(row_of_token, positions),
    )
    return StepInputs(
        token_ids=rows.tokens.take(at_tokens).long(),
        positions=at_positions,
        attention=_attention(
            starts, lengths, rows, windows, at_rows=at_rows, query_starts=at_starts, seq_lens=at_ends, slots=at_slots
        ),
        sampling=SamplingInputs(
            last_tokens=at_last,
            source=at_source if forks else None,
            rows=sampling,
            places=at_samples,
            batch=_sampling_batch(sampling, known, rows),
        )
        if sampling
        else None,
    )


_NOTHING = np.zeros(0, dtype=np.int64)


def _attention(
    starts: Sequence[int],
    lengths: Sequence[int],
    rows: RowTable,
    windows: Sequence[int | None],
    *,
    at_rows: Tensor,
    query_starts: Tensor,
    seq_lens: Tensor,
    slots: Sequence[Tensor],
) -> Sequence[AttentionBatch]:
    """By KV group; see AttentionBatch. Tensors are int64 here."""
    starts32, lens32 = query_starts.int(), seq_lens.int()
    widest = -(-max(map(add, starts, lengths)) // rows.block_tokens)
    return [
        AttentionBatch(
            starts=starts,
            lengths=lengths,
            block_tables=table.narrow(1, 0, widest).index_select(0, at_rows),
            query_starts=starts32,
            seq_lens=lens32,
            slots=own_slots,
            window=window,
        )
        for table, own_slots, window in zip(rows.block_tables, slots, windows, strict=True)
    ]


def _sampling_batch(sampling: Sequence[Row], known: NDArray[np.int64], rows: RowTable) -> SamplingBatch:
    """`known`: tokens of each of these rows before its sample."""
    states = [rows[row] for row in sampling]
    described = [
        SamplingRow(state.params, state.choice, state.prompt_length, length)
        for state, length in zip(states, known.tolist(), strict=True)
    ]
    penalised = [index for index, state in enumerate(states) if state.penalised]
    return SamplingBatch(rows=described, tokens=_tokens_of_penalised(penalised, sampling, described, rows))


def _tokens_of_penalised(
    penalised: Sequence[int], sampling: Sequence[Row], described: Sequence[SamplingRow], rows: RowTable
) -> Tensor:
    """See SamplingBatch.tokens. `penalised` are indices into the others."""
    if not penalised:
        return rows.no_tokens
    at = torch.tensor([sampling[index] for index in penalised]).to(rows.tokens.device)
    return rows.tokens[at, : max(described[index].length for index in penalised)].long()


def _to_device(device: torch.device, *arrays: NDArray[np.int64]) -> Sequence[Tensor]:
    """int64 arrays, in one transfer."""
    return torch.from_numpy(np.concatenate(arrays)).to(device).split_with_sizes([len(array) for array in arrays])
