"""Attention of the CPU path by kernels of kvik_kernels.cpu, which read keys and values in the blocks where they lie."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kvik_engine.attention.backend import AttentionBatch
from kvik_engine.attention.kv_cache import STORED, KVCache, LayerCache
from kvik_kernels.cpu.attention import PagedQueries, Query
from kvik_kernels.cpu.library import Library
from kvik_kernels.cpu.write import PagedWrites


class KernelPath:
    """See cpu_backend.CpuPath. Each new token is a query of its own, so a row's tokens read its past once each: from
    the CPU's cache, as long as they are few."""

    most_tokens = 8

    def __init__(self, library: Library, *, heads: int) -> None:
        """`heads`: query heads of the model."""
        self.name = library.best.name.lower()
        self._library = library
        self._heads = heads

    def plan(self, batch: AttentionBatch, rows: Sequence[int], cache: KVCache) -> list[InPlaceRows]:
        queries, tokens, first = list[Query](), list[int](), 0
        taken = set(rows)
        for row, (start, length) in enumerate(zip(batch.starts, batch.lengths, strict=True)):
            if row in taken:
                for offset in range(length):
                    position = start + offset
                    queries.append(Query(row, batch.first_seen(position), position + 1))
                    tokens.append(first + offset)
            first += length
        layout = cache.layout
        paged = PagedQueries(
            self._library,
            queries,
            batch.block_tables,
            kv_heads=layout.heads,
            group=self._heads // layout.heads,
            width=layout.width,
            blocks=cache.blocks,
            block_tokens=layout.block_tokens,
            dtype=cache.dtype,
            key_dtype=STORED[layout.formats.key.name],
            value_dtype=STORED[layout.formats.value.name],
            threads=torch.get_num_threads(),
        )
        return [InPlaceRows(torch.tensor(tokens), paged)]

    def plan_writes(self, batch: AttentionBatch, cache: KVCache) -> InPlaceWrites:
        layout = cache.layout
        return InPlaceWrites(
            PagedWrites(
                self._library,
                batch.slots,
                kv_heads=layout.heads,
                width=layout.width,
                blocks=cache.blocks,
                block_tokens=layout.block_tokens,
                dtype=cache.dtype,
                key_dtype=STORED[layout.formats.key.name],
                value_dtype=STORED[layout.formats.value.name],
            )
        )


@dataclass(frozen=True, slots=True)
class InPlaceWrites:
    """See cpu_backend.TokenWrites."""

    writes: PagedWrites

    @property
    def replayed(self) -> PagedWrites:
        return self.writes

    def write(self, key: Tensor, value: Tensor | None, cache: LayerCache) -> None:
        assert value is not None, "start-up leaves latent caches to torch"
        self.writes.write(key, value, cache.keys, cache.values, cache.key_scales, cache.value_scales)


@dataclass(frozen=True, slots=True)
class InPlaceRows:
    """See cpu_backend.RowsAttention."""

    tokens: Tensor
    queries: PagedQueries

    @property
    def replayed(self) -> PagedQueries:
        return self.queries

    def attend(self, query: Tensor, cache: LayerCache, *, scale: float) -> Tensor:
        return self.queries.attend(query, cache.keys, cache.values, cache.key_scales, cache.value_scales, scale=scale)
