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
from kvik_engine.sampling.batch import SamplingBatch
from kvik_engine.step import Row, RowWork

Indices = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SamplingInputs:
    """Which tokens' hidden states give logits, and which rows sample from them."""

    last_tokens: Tensor | None
    """int64 [works that sample]: index of each one's last token in the step; None when it would name every token."""
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
    longest = int(ends.max())
    rows.check_reach(longest)
    query_starts = np.zeros(len(works) + 1, dtype=np.int64)
    count.cumsum(out=query_starts[1:])
    row_of_token, positions = _each_token(row_ids, first, count, query_starts)
    sampling = tuple(chain.from_iterable(sampled_rows))
    if sampling == work_rows:
        sampling_ids, known, last_tokens, source = row_ids, ends, query_starts[1:] - 1, _NOTHING
    else:
        sampling_ids, known, last_tokens, source = _each_sample(sampled_rows, ends, query_starts)
    at_tokens, at_positions, at_rows, at_last, at_source, at_samples, at_starts, at_ends, *at_slots = _to_device(
        rows.tokens.device,
        rows.token_places(row_of_token, positions),
        positions,
        row_ids,
        last_tokens,
        source,
        rows.token_places(sampling_ids, known),
        query_starts,
        ends,
        *rows.slots(row_of_token, positions),
    )
    return StepInputs(
        token_ids=rows.tokens.take(at_tokens),
        positions=at_positions,
        attention=[
            AttentionBatch(starts, lengths, table.index_select(0, at_rows), at_starts, at_ends, slots, window)
            for table, slots, window in zip(rows.first_blocks(longest), at_slots, windows, strict=True)
        ],
        sampling=SamplingInputs(
            last_tokens=None if len(last_tokens) == len(positions) else at_last,
            source=at_source if len(source) else None,
            rows=sampling,
            places=at_samples,
            batch=_sampling_batch(sampling, known.tolist(), rows),
        )
        if sampling
        else None,
    )


_NOTHING = np.zeros(0, dtype=np.int64)


def _each_token(row_ids: Indices, first: Indices, count: Indices, query_starts: Indices) -> tuple[Indices, Indices]:
    """Row and position of every token of the step."""
    if query_starts[-1] == len(row_ids):
        return row_ids, first
    return row_ids.repeat(count), np.arange(query_starts[-1]) + (first - query_starts[:-1]).repeat(count)


def _each_sample(
    sampled_rows: Sequence[Sequence[Row]], ends: Indices, query_starts: Indices
) -> tuple[Indices, Indices, Indices, Indices]:
    """Of every sample its row and the tokens before it; `last_tokens` and `source` of SamplingInputs."""
    samples = np.array(list(map(len, sampled_rows)))
    rows = np.array(list(chain.from_iterable(sampled_rows)), dtype=np.int64)
    last_tokens = query_starts[1:][samples > 0] - 1
    forks = len(rows) > len(last_tokens)
    source = np.arange(len(last_tokens)).repeat(samples[samples > 0]) if forks else _NOTHING
    return rows, ends.repeat(samples), last_tokens, source


def _sampling_batch(sampling: Sequence[Row], lengths: Sequence[int], rows: RowTable) -> SamplingBatch:
    """`lengths`: tokens of each of these rows before its sample."""
    states = rows.states(sampling)
    penalised = [index for index, state in enumerate(states) if state.penalised]
    tokens = rows.no_tokens
    if penalised:
        at = torch.tensor([sampling[index] for index in penalised]).to(rows.tokens.device)
        tokens = rows.tokens[at, : max(lengths[index] for index in penalised)]
    return SamplingBatch([state.sampling for state in states], lengths, tokens)


def _to_device(device: torch.device, *arrays: Indices) -> Sequence[Tensor]:
    """int64 arrays, in one transfer."""
    return torch.from_numpy(np.concatenate(arrays)).to(device).split_with_sizes([len(array) for array in arrays])
