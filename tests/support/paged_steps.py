"""Runs a model over a paged cache by hand: rows of several tokens a step, blocks in no order, one table per KV group.

Blocks are handed out and taken back as the KV manager may at its strictest: what lies wholly behind the window of a
row's next query goes back at once, is filled with NaN and soon is another row's, and its table entry becomes 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from kvik_engine.attention.backend import AttentionBackend, AttentionBatch, StepAttention
from kvik_engine.attention.kv_cache import KVCache
from kvik_engine.attention.kv_layout import KVFormats
from kvik_engine.models.kv_groups import kv_layout
from kvik_engine.models.registry import Model
from kvik_engine.runner.dtypes import DTYPES

CPU = torch.device("cpu")
NAN = 0xFF
"""A number all of whose bytes are this is NaN in every format but int8, whose scale then is."""
NAMES = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(slots=True)
class _Row:
    computed: int
    tables: list[list[int]] = field(default_factory=list)


class PagedModel:
    """A model and its cache. `step` may be given any rows by any name."""

    def __init__(
        self,
        model: Model,
        backend: AttentionBackend,
        *,
        blocks: int,
        block_tokens: int = 4,
        dtype: torch.dtype = torch.float32,
        formats: KVFormats | None = None,
    ) -> None:
        """`formats` of the cache; None: as `dtype`."""
        self.model = model
        self.backend = backend
        layout = kv_layout(model.config, block_tokens, formats or KVFormats.of(NAMES[dtype]))
        self.cache = KVCache(blocks=blocks, layout=layout, dtype=dtype, device=CPU)
        self.cache.regions[1:] = NAN
        draw = torch.Generator().manual_seed(blocks)
        self.free = (torch.randperm(blocks, generator=draw) + 1).tolist()
        self._rows: dict[int, _Row] = {}

    @torch.inference_mode()
    def step(self, work: Mapping[int, Tensor]) -> dict[int, Tensor]:
        """Row -> its next tokens, int64 [n]; gives fp32 [n, vocabulary] of each."""
        starts, lengths = [], []
        for name, tokens in work.items():
            row = self._rows.setdefault(name, _Row(0, [[] for _ in self.cache.layout.windows]))
            self._take_back(row)
            self._extend(row, row.computed + len(tokens))
            starts.append(row.computed)
            lengths.append(len(tokens))
            row.computed += len(tokens)
        rows = [self._rows[name] for name in work]
        batches = [self._batch(group, rows, starts, lengths) for group in range(len(self.cache.layout.windows))]
        positions = torch.cat(
            [torch.arange(start, start + length) for start, length in zip(starts, lengths, strict=True)]
        )
        hidden = self.model.forward(
            torch.cat(list(work.values())), positions, StepAttention(self.backend, batches, self.cache)
        )
        return dict(zip(work, self.model.logits(hidden).split(lengths), strict=True))

    def run(self, prompts: Sequence[Tensor], chunks: Sequence[int]) -> list[Tensor]:
        """All logits of all prompts, taken side by side in chunks of these lengths, the last one again and again."""
        got: list[list[Tensor]] = [[] for _ in prompts]
        left = dict(enumerate(prompts))
        sizes = list(chunks)
        while left:
            size = sizes.pop(0) if len(sizes) > 1 else sizes[0]
            for row, logits in self.step({row: tokens[:size] for row, tokens in left.items()}).items():
                got[row].append(logits)
            left = {row: tokens[size:] for row, tokens in left.items() if len(tokens) > size}
        return [torch.cat(parts) for parts in got]

    def _take_back(self, row: _Row) -> None:
        for window, table in zip(self.cache.layout.windows, row.tables, strict=True):
            behind = 0 if window is None else max(0, row.computed + 1 - window) // self.cache.block_tokens
            for index in range(min(behind, len(table))):
                if table[index]:
                    self.cache.regions[table[index]] = NAN
                    self.free.insert(0, table[index])
                    table[index] = 0

    def _extend(self, row: _Row, tokens: int) -> None:
        for table in row.tables:
            while len(table) * self.cache.block_tokens < tokens:
                table.append(self.free.pop(0))

    def _batch(self, group: int, rows: Sequence[_Row], starts: list[int], lengths: list[int]) -> AttentionBatch:
        size = self.cache.block_tokens
        tables = torch.zeros((len(rows), max(len(row.tables[group]) for row in rows)), dtype=torch.int32)
        slots = []
        for index, (row, start, length) in enumerate(zip(rows, starts, lengths, strict=True)):
            table = row.tables[group]
            tables[index, : len(table)] = torch.tensor(table, dtype=torch.int32)
            slots += [table[at // size] * size + at % size for at in range(start, start + length)]
        ends = torch.tensor([0, *lengths]).cumsum(0)
        return AttentionBatch(
            starts=starts,
            lengths=lengths,
            block_tables=tables,
            query_starts=ends,
            seq_lens=torch.tensor([row.computed for row in rows]),
            slots=torch.tensor(slots),
            window=self.cache.layout.windows[group],
        )
