"""The product's CPU path. Rows of few new tokens (decode) go the way that start-up chose, by kernels or by torch; rows
of many, which are matrix products, always by torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from kvik_engine.attention.backend import AttentionBatch
from kvik_engine.attention.cpu_gathered import GatheredDecodes, PrefillRow, Vectors, vectors_of
from kvik_engine.attention.kv_cache import KVCache, LayerCache


class RowsAttention(Protocol):
    """Attention of some rows of one step."""

    @property
    def tokens(self) -> Tensor | slice:
        """The rows' places among the step's tokens."""
        ...

    def attend(self, query: Tensor, cache: LayerCache, *, scale: float) -> Tensor:
        """[those tokens, heads, width] -> [those tokens, heads, value_width]."""
        ...


class ShortRows(Protocol):
    """How rows of few new tokens are attended for."""

    name: str
    """What computes, for logs and /info; empty for torch."""
    most_tokens: int
    """Rows of more new tokens than that are not its own."""

    def plan(self, batch: AttentionBatch, rows: Sequence[int], cache: KVCache) -> Sequence[RowsAttention]:
        """`rows` of the batch, at least one; together these attend for all of them."""
        ...


class CpuBackend:
    """See attention.backend."""

    attends_latents = True

    def __init__(self, short_rows: ShortRows | None = None) -> None:
        """None: by torch, which serves every cache."""
        self._short_rows = short_rows or GatheredDecodes()
        self.name = f"cpu {self._short_rows.name}".rstrip()

    def plan(self, batch: AttentionBatch, cache: KVCache) -> CpuStep:
        most = self._short_rows.most_tokens
        short, parts = list[int](), list[RowsAttention]()
        first = 0
        for row, length in enumerate(batch.lengths):
            if length <= most:
                short.append(row)
            else:
                parts.append(PrefillRow.of(batch, cache, row, first))
            first += length
        if short:
            parts += self._short_rows.plan(batch, short, cache)
        return CpuStep(Vectors.of(cache).of_slots(batch.slots), parts)


class CpuStep:
    """One step's rows, the same for every layer."""

    def __init__(self, write_index: Tensor, parts: Sequence[RowsAttention]) -> None:
        self._write_index = write_index
        self._parts = parts

    def write(self, key: Tensor, value: Tensor | None, cache: LayerCache) -> None:
        if value is None:
            # The value is a part of the key: finite as well.
            vectors_of(cache.keys).index_copy_(0, self._write_index, key.reshape(-1, key.shape[-1]).nan_to_num())
            return
        width = key.shape[-1]
        vectors_of(cache.keys).index_copy_(0, self._write_index, key.reshape(-1, width))
        vectors_of(cache.values).index_copy_(0, self._write_index, value.reshape(-1, width).nan_to_num())

    def attend(self, query: Tensor, cache: LayerCache, *, scale: float) -> Tensor:
        if len(self._parts) == 1:
            return self._parts[0].attend(query, cache, scale=scale)
        out = torch.empty((*query.shape[:2], cache.values.shape[-1]), dtype=query.dtype)
        for part in self._parts:
            out[part.tokens] = part.attend(query[part.tokens], cache, scale=scale)
        return out
