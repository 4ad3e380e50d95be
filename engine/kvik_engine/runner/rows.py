"""Stable rows: what the device keeps of each branch between steps, addressed by Row.

Token ids and block tables live on the device, so that a step is gathered there and a sample needs no way over the host.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kvik_engine.params import SamplingParams
from kvik_engine.step import BlockId, Row, RowFork, RowStart, RowWork, TableChange


@dataclass(slots=True)
class BranchState:
    """The host's side of a row."""

    params: SamplingParams
    choice: int
    prompt_length: int
    blocks: list[int]
    """By KV group, entries of the block table in use."""


class RowTable:
    """All rows. Table entries past a row's blocks are 0. What the KV manager frees behind a window stays in the table:
    nobody reads it."""

    def __init__(self, *, rows: int, max_tokens: int, block_tokens: int, groups: int, device: torch.device) -> None:
        self.block_tokens = block_tokens
        self.tokens = torch.zeros((rows, max_tokens), dtype=torch.int32, device=device)
        width = -(-max_tokens // block_tokens)
        self.block_tables = [torch.zeros((rows, width), dtype=torch.int32, device=device) for _ in range(groups)]
        """By KV group: int32 [rows, blocks]."""
        self._states: dict[Row, BranchState] = {}

    def __getitem__(self, row: Row) -> BranchState:
        return self._states[row]

    def end(self, row: Row) -> None:
        """The row is free."""
        del self._states[row]

    def start(self, start: RowStart) -> None:
        """A branch takes a free row."""
        self._take(start.row, start.params, start.choice, start.prompt_length, start.blocks)
        known = torch.tensor(start.tokens, dtype=torch.int32)
        self.tokens[start.row, : len(start.tokens)] = known.to(self.tokens.device)

    def fork(self, fork: RowFork) -> None:
        """A free row becomes a copy of another, with blocks of its own."""
        source = self._states[fork.source]
        self._take(fork.row, source.params, fork.choice, source.prompt_length, fork.blocks)
        self.tokens[fork.row] = self.tokens[fork.source]

    def append_blocks(self, works: Iterable[RowWork]) -> None:
        """Add each work's new blocks to its row's tables."""
        works = [work for work in works if any(work.new_blocks)]
        if not works:
            return
        for group, table in enumerate(self.block_tables):
            rows: list[int] = []
            columns: list[int] = []
            blocks: list[int] = []
            for work in works:
                new = work.new_blocks[group]
                used = self._states[work.row].blocks
                rows += [work.row] * len(new)
                columns += range(used[group], used[group] + len(new))
                blocks += new
                used[group] += len(new)
            _set_entries(table, rows, columns, blocks)

    def change_tables(self, changes: Sequence[TableChange]) -> None:
        """Copy-on-write: a row's shared block gives way to the row's own copy."""
        for group, table in enumerate(self.block_tables):
            own = [change for change in changes if change.group == group]
            if own:
                _set_entries(table, [one.row for one in own], [one.index for one in own], [one.block for one in own])

    def append_tokens(self, rows: Sequence[Row], positions: Sequence[int], tokens: Tensor) -> None:
        """Store one token a row at its position; int64 [rows] on the device."""
        places = torch.tensor((list(rows), list(positions))).to(self.tokens.device)
        self.tokens[places[0], places[1]] = tokens.to(torch.int32)

    def _take(
        self,
        row: Row,
        params: SamplingParams,
        choice: int,
        prompt_length: int,
        tables: tuple[tuple[BlockId, ...], ...],
    ) -> None:
        assert row not in self._states, f"row {row} is taken"
        self._states[row] = BranchState(params, choice, prompt_length, [len(blocks) for blocks in tables])
        for device_table, blocks in zip(self.block_tables, tables, strict=True):
            table = torch.zeros(device_table.shape[1], dtype=torch.int32)
            table[: len(blocks)] = torch.tensor(blocks, dtype=torch.int32)
            device_table[row] = table.to(device_table.device)


def _set_entries(table: Tensor, rows: Sequence[int], columns: Sequence[int], blocks: Sequence[int]) -> None:
    places = torch.tensor((rows, columns, blocks)).to(table.device)
    table[places[0], places[1]] = places[2].to(torch.int32)
