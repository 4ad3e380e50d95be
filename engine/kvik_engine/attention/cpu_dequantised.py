"""Quantised keys and values on the CPU path, in torch: written with their scales, and dequantised, a row's past at a
time, to be attended to as any other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

import torch
from torch import Tensor

from kvik_engine.attention.backend import AttentionBatch
from kvik_engine.attention.kv_cache import KVCache, LayerCache
from kvik_kernels.quantised import dequantise, keep


class DequantisingPath:
    """See cpu_backend.CpuPath: every row goes the way of long ones."""

    name = ""
    most_tokens = 0

    def plan(self, batch: AttentionBatch, rows: Sequence[int], cache: KVCache) -> NoReturn:
        raise AssertionError("no row has so few tokens")

    def plan_writes(self, batch: AttentionBatch, cache: KVCache) -> QuantisingWrites:
        return QuantisingWrites(batch.slots // cache.block_tokens, batch.slots % cache.block_tokens)


@dataclass(frozen=True, slots=True)
class QuantisingWrites:
    """See cpu_backend.TokenWrites."""

    blocks: Tensor
    """int64 [tokens]."""
    offsets: Tensor

    @property
    def replayed(self) -> None:
        return None

    def write(self, key: Tensor, value: Tensor | None, cache: LayerCache) -> None:
        assert value is not None, "start-up refuses quantised latents"
        self._keep(key, cache.keys, cache.key_scales)
        self._keep(value.nan_to_num(), cache.values, cache.value_scales)

    def _keep(self, vectors: Tensor, cache: Tensor, scales: Tensor | None) -> None:
        """[tokens, heads, width]: the indices stand on both sides of the head dimension, which puts tokens first."""
        cache[self.blocks, :, self.offsets], kept = keep(vectors, cache.dtype, scaled=scales is not None)
        if scales is not None and kept is not None:
            scales[self.blocks, :, self.offsets] = kept


@dataclass(frozen=True, slots=True)
class DequantisedPast:
    """See cpu_gathered.Past. Whole blocks are read; what they hold outside of the past is dropped."""

    blocks: Tensor
    """int64 [blocks that the past lies in]."""
    tokens: slice
    """The past's, among those of the blocks."""
    dtype: torch.dtype

    @classmethod
    def of(cls, block_table: Tensor, begin: int, end: int, cache: KVCache) -> DequantisedPast:
        size = cache.block_tokens
        base = begin // size * size
        return cls(block_table[begin // size : -(-end // size)].long(), slice(begin - base, end - base), cache.dtype)

    def keys(self, cache: LayerCache) -> Tensor:
        return self._whole(cache.keys, cache.key_scales)

    def values(self, cache: LayerCache) -> Tensor:
        return self._whole(cache.values, cache.value_scales)

    def _whole(self, cache: Tensor, scales: Tensor | None) -> Tensor:
        wide = dequantise(cache[self.blocks], None if scales is None else scales[self.blocks])
        if self.dtype == torch.float16:
            # What the cache keeps of the largest number may lie above it: a weight of 0 would make NaN of infinity.
            most = torch.finfo(torch.float16).max
            wide.clamp_(-most, most)
        vectors = wide.to(self.dtype)
        return vectors.transpose(0, 1).flatten(1, 2)[:, self.tokens]
