"""The product's CPU backend. Writes and rows of few new tokens (decode) go the way that start-up chose, by kernels or
by torch; rows of many, which are matrix products, always by torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from kvik_engine.attention.backend import AttentionBatch
from kvik_engine.attention.cpu_gathered import PrefillRow, TorchPath
from kvik_engine.attention.kv_cache import KVCache, LayerCache
from kvik_engine.attention.kv_layout import QUANTISED
from kvik_kernels.cpu.attention import PagedQueries
from kvik_kernels.cpu.write import PagedWrites


class Replayed(NamedTuple):
    """What recorded calls of a step read anew in each that follows."""

    writes: PagedWrites
    queries: PagedQueries

    def become(self, other: Replayed) -> None:
        """Stand for `other` from now on. ValueError where it is of other shapes or caches."""
        self.writes.become(other.writes)
        self.queries.become(other.queries)


class RowsAttention(Protocol):
    """Attention of some rows of one step."""

    @property
    def replayed(self) -> PagedQueries | None:
        """Its part of Replayed; None where torch computes."""
        ...

    @property
    def tokens(self) -> Tensor | slice:
        """The rows' places among the step's tokens."""
        ...

    def attend(self, query: Tensor, cache: LayerCache, *, scale: float) -> Tensor:
        """[those tokens, heads, width] -> [those tokens, heads, value_width]."""
        ...


class TokenWrites(Protocol):
    """Where one step's new tokens go."""

    @property
    def replayed(self) -> PagedWrites | None:
        """Its part of Replayed; None where torch computes."""
        ...

    def write(self, key: Tensor, value: Tensor | None, cache: LayerCache) -> None:
        """See backend.LayerAttention."""
        ...


class CpuPath(Protocol):
    """How keys and values are written, and rows of few new tokens attended for."""

    name: str
    """What computes, for logs and /info; empty for torch."""
    most_tokens: int
    """Rows of more new tokens than that are left to torch."""

    def plan(self, batch: AttentionBatch, rows: Sequence[int], cache: KVCache) -> Sequence[RowsAttention]:
        """`rows` of the batch, at least one; together these attend for all of them."""
        ...

    def plan_writes(self, batch: AttentionBatch, cache: KVCache) -> TokenWrites: ...


class CpuBackend:
    """See attention.backend."""

    attends_latents = True
    quantised = QUANTISED

    def __init__(self, path: CpuPath | None = None) -> None:
        """None: by torch, which serves every cache that is not quantised."""
        self._path = path or TorchPath()
        self.name = f"cpu {self._path.name}".rstrip()

    def plan(self, batch: AttentionBatch, cache: KVCache) -> CpuStep:
        most = self._path.most_tokens
        short, parts = list[int](), list[RowsAttention]()
        first = 0
        for row, length in enumerate(batch.lengths):
            if length <= most:
                short.append(row)
            else:
                parts.append(PrefillRow.of(batch, cache, row, first))
            first += length
        if short:
            parts += self._path.plan(batch, short, cache)
        return CpuStep(self._path.plan_writes(batch, cache), parts)


class CpuStep:
    """One step's rows, the same for every layer."""

    def __init__(self, writes: TokenWrites, parts: Sequence[RowsAttention]) -> None:
        self.write = writes.write
        self._writes = writes
        self._parts = parts

    @property
    def replayed(self) -> Replayed | None:
        """None where torch computes any of it."""
        writes, queries = self._writes.replayed, self._parts[0].replayed if len(self._parts) == 1 else None
        return None if writes is None or queries is None else Replayed(writes, queries)

    def attend(self, query: Tensor, cache: LayerCache, *, scale: float) -> Tensor:
        if len(self._parts) == 1:
            return self._parts[0].attend(query, cache, scale=scale)
        out = torch.empty((*query.shape[:2], cache.value_width), dtype=query.dtype)
        for part in self._parts:
            out[part.tokens] = part.attend(query[part.tokens], cache, scale=scale)
        return out
