"""CUDA and ROCm: both operations are kernels of kvik_kernels."""

from __future__ import annotations

import torch
from torch import Tensor

from kvik_engine.attention.backend import AttentionBatch
from kvik_engine.attention.kv_cache import STORED, KVCache, LayerCache
from kvik_engine.attention.kv_layout import QUANTISED
from kvik_kernels import kv_write, paged_attention


class TritonBackend:
    """See attention.backend."""

    name = "triton"
    attends_latents = False

    def __init__(self, *, fp8: bool) -> None:
        """`fp8`: whether the device converts it."""
        self.quantised = tuple(name for name in QUANTISED if fp8 or STORED[name] is not torch.float8_e4m3fn)

    def plan(self, batch: AttentionBatch, cache: KVCache) -> TritonStep:
        return TritonStep(batch)


class TritonStep:
    """One step's rows."""

    def __init__(self, batch: AttentionBatch) -> None:
        self._batch = batch
        self._query_starts = batch.query_starts.int()
        self._seq_lens = batch.seq_lens.int()
        self._max_query_len = max(batch.lengths)

    def write(self, key: Tensor, value: Tensor | None, cache: LayerCache) -> None:
        assert value is not None, "start-up refuses this backend for latent caches"
        kv_write(
            key,
            value,
            cache.keys,
            cache.values,
            self._batch.slots,
            k_scales=cache.key_scales,
            v_scales=cache.value_scales,
        )

    def attend(self, query: Tensor, cache: LayerCache, *, scale: float) -> Tensor:
        batch = self._batch
        return paged_attention(
            query,
            cache.keys,
            cache.values,
            batch.block_tables,
            self._query_starts,
            self._seq_lens,
            scale=scale,
            max_query_len=self._max_query_len,
            window=batch.window,
            k_scales=cache.key_scales,
            v_scales=cache.value_scales,
        )
