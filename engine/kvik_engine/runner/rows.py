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
    blocks: int
    """Entries of the block table in use."""


class RowTable:
    """All rows. Table entries past a row's blocks are 0."""

    def __init__(self, *, rows: int, max_tokens: int, block_tokens: int, device: torch.device) -> None:
        self.block_tokens = block_tokens
        self.tokens = torch.zeros((rows, max_tokens), dtype=torch.int32, device=device)
        self.block_tables = torch.zeros((rows, -(-max_tokens // block_tokens)), dtype=torch.int32, device=device)
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
        """Add each work's new blocks to its row's table."""
        rows: list[int] = []
        columns: list[int] = []
        blocks: list[int] = []
        for work in works:
            (new,) = work.new_blocks
            state = self._states[work.row]
            rows += [work.row] * len(new)
            columns += range(state.blocks, state.blocks + len(new))
            blocks += new
            state.blocks += len(new)
        if blocks:
            places = torch.tensor((rows, columns, blocks)).to(self.block_tables.device)
            self.block_tables[places[0], places[1]] = places[2].to(torch.int32)

    def change_tables(self, changes: Iterable[TableChange]) -> None:
        """Copy-on-write: a row's shared block gives way to the row's own copy."""
        places = torch.tensor([(change.row, change.index, change.block) for change in changes])
        rows, columns, blocks = places.to(self.block_tables.device).unbind(dim=1)
        self.block_tables[rows, columns] = blocks.to(torch.int32)

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
        (blocks,) = tables
        self._states[row] = BranchState(params, choice, prompt_length, len(blocks))
        table = torch.zeros(self.block_tables.shape[1], dtype=torch.int32)
        table[: len(blocks)] = torch.tensor(blocks, dtype=torch.int32)
        self.block_tables[row] = table.to(self.block_tables.device)
