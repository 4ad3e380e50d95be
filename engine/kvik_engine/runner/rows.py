"""Stable rows: what a runner keeps of each branch between steps, addressed by Row.

Token ids live on the device, so that a step is gathered there and a sample needs no way over the host. Block tables are
the host's, which finds a step's cache slots in them; attention reads a copy on the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kvik_engine.params import SamplingParams
from kvik_engine.sampling.batch import SamplingRow, penalised
from kvik_engine.step import BlockId, ChosenToken, Row, RowFork, RowStart, RowWork, TableChange

_LINE_ENTRIES = 16
"""int32 in a cache line of 64 bytes."""


@dataclass(slots=True)
class BranchState:
    """What stays as it is while a branch has its row, and how long its tables are."""

    sampling: SamplingRow
    penalised: bool
    blocks: list[int]
    """By KV group, entries of the block table in use."""


class RowTable:
    """All rows. Table entries past a row's blocks are 0. What the KV manager frees behind a window stays in the table:
    nobody reads it."""

    def __init__(self, *, rows: int, max_tokens: int, block_tokens: int, groups: int, device: torch.device) -> None:
        self.block_tokens = block_tokens
        self.tokens = torch.zeros((rows, _spread(max_tokens)), dtype=torch.int64, device=device)
        """[rows, tokens]. As wide as models take and samplers give them, so that no step converts any."""
        self._width = self.tokens.shape[1]
        self.no_tokens = torch.zeros((0, 0), dtype=torch.int64, device=device)
        self.host_tables = np.zeros((groups, rows, _spread(-(-max_tokens // block_tokens))), dtype=np.int32)
        """By KV group: int32 [rows, blocks]."""
        self._device_tables = torch.zeros(self.host_tables.shape, dtype=torch.int32, device=device)
        """The same on the device."""
        self._table_of_group = self._device_tables.unbind()
        self._states: dict[Row, BranchState] = {}

    def states(self, rows: Sequence[Row]) -> list[BranchState]:
        """Of rows that are taken."""
        states = self._states
        return [states[row] for row in rows]

    def end(self, row: Row) -> None:
        """The row is free."""
        del self._states[row]

    def start(self, start: RowStart) -> None:
        """A branch takes a free row."""
        self._take(start.row, start.params, start.choice, start.prompt_length, start.blocks)
        known = torch.tensor(start.tokens)
        self.tokens[start.row, : len(start.tokens)] = known.to(self.tokens.device)

    def fork(self, fork: RowFork) -> None:
        """A free row becomes a copy of another, with blocks of its own."""
        source = self._states[fork.source]
        self._take(fork.row, source.sampling.params, fork.choice, source.sampling.prompt_length, fork.blocks)
        self.tokens[fork.row] = self.tokens[fork.source]

    def first_blocks(self, tokens: int) -> list[Tensor]:
        """By KV group, on the device: int32 [rows, blocks], the blocks of each row's first `tokens` tokens."""
        blocks = -(-tokens // self.block_tokens)
        return [table.narrow(1, 0, blocks) for table in self._table_of_group]

    def append_blocks(self, works: Sequence[RowWork]) -> None:
        """Add each work's new blocks to its row's tables."""
        places: list[int] = []
        blocks: list[BlockId] = []
        for work in [work for work in works if work.new_blocks]:
            used = self._states[work.row].blocks
            for group, new in enumerate(work.new_blocks):
                place = self._place(group, work.row, used[group])
                places += range(place, place + len(new))
                blocks += new
                used[group] += len(new)
        if places:
            self._set_entries(places, blocks)

    def change_tables(self, changes: Sequence[TableChange]) -> None:
        """Copy-on-write: a row's shared block gives way to the row's own copy."""
        if changes:
            self._set_entries([self._place(c.group, c.row, c.index) for c in changes], [c.block for c in changes])

    def token_places(self, rows: NDArray[np.int64], positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Indices into `tokens` as one vector. The positions are within the rows (`check_reach`)."""
        return rows * self._width + positions

    def check_reach(self, position: int) -> None:
        """The largest position of several. One past a row's end would be the next row's first token."""
        assert position < self._width, f"position {position} is past the {self._width} tokens of a row"

    def slots(self, rows: NDArray[np.int64], positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where in the cache tokens [n] of these rows lie: block * block_tokens + offset, [groups, n]."""
        index, offset = np.divmod(positions, self.block_tokens)
        return np.multiply(self.host_tables[:, rows, index], self.block_tokens, dtype=np.int64) + offset

    def set_tokens(self, chosen: Sequence[ChosenToken]) -> None:
        """Tokens that the host chose in place of samples."""
        if chosen:
            rows, positions, tokens = np.array([(one.row, one.position, one.token) for one in chosen]).T
            self.check_reach(int(positions.max()))
            device = self.tokens.device
            places = torch.from_numpy(self.token_places(rows, positions)).to(device)
            self.append_tokens(places, torch.tensor(tokens).to(device))

    def append_tokens(self, places: Tensor, tokens: Tensor) -> None:
        """Store tokens at their `token_places`: int64 [n], both on the device."""
        self.tokens.put_(places, tokens)

    def _take(
        self,
        row: Row,
        params: SamplingParams,
        choice: int,
        prompt_length: int,
        tables: tuple[tuple[BlockId, ...], ...],
    ) -> None:
        assert row not in self._states, f"row {row} is taken"
        sampling = SamplingRow(params, choice, prompt_length)
        self._states[row] = BranchState(sampling, penalised(params), [len(blocks) for blocks in tables])
        self.host_tables[:, row] = 0
        for table, blocks in zip(self.host_tables, tables, strict=True):
            table[row, : len(blocks)] = blocks
        self._device_tables[:, row] = torch.from_numpy(self.host_tables[:, row]).to(self.tokens.device)

    def _place(self, group: int, row: Row, index: int) -> int:
        """Of a table's entry among all entries of all tables."""
        _, rows, width = self.host_tables.shape
        return (group * rows + row) * width + index

    def _set_entries(self, places: Sequence[int], blocks: Sequence[BlockId]) -> None:
        at, entries = np.array(places), np.array(blocks, dtype=np.int32)
        self.host_tables.reshape(-1)[at] = entries
        device = self.tokens.device
        self._device_tables.put_(torch.from_numpy(at).to(device), torch.from_numpy(entries).to(device))


def _spread(entries: int) -> int:
    """How long to make rows of so many int32: an odd number of cache lines. With a power of two, or nearly, the same
    column of all rows falls into the same few places of the caches, and a step reads a column."""
    lines = -(-entries // _LINE_ENTRIES)
    return (lines | 1) * _LINE_ENTRIES
