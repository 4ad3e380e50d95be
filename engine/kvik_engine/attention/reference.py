"""The oracle: plain torch, one row and one head group after the other, in fp32. Slow and obviously right."""

from __future__ import annotations

import torch
from torch import Tensor

from kvik_engine.attention.backend import AttentionBatch
from kvik_engine.attention.kv_cache import KVCache, LayerCache
from kvik_engine.attention.kv_layout import QUANTISED
from kvik_kernels.quantised import dequantise, keep


class ReferenceBackend:
    """See attention.backend."""

    name = "reference"
    attends_latents = True
    quantised = QUANTISED

    def plan(self, batch: AttentionBatch, cache: KVCache) -> ReferenceStep:
        return ReferenceStep(batch, cache.block_tokens)


class ReferenceStep:
    """One step's rows, read straight from the batch."""

    def __init__(self, batch: AttentionBatch, block_tokens: int) -> None:
        self._batch = batch
        self._block_tokens = block_tokens

    def write(self, key: Tensor, value: Tensor | None, cache: LayerCache) -> None:
        for token, slot in enumerate(self._batch.slots.tolist()):
            block, offset = divmod(slot, self._block_tokens)
            _keep(key[token], cache.keys[block, :, offset], cache.key_scales, block, offset)
            if value is not None:
                _keep(value[token], cache.values[block, :, offset], cache.value_scales, block, offset)

    def attend(self, query: Tensor, cache: LayerCache, *, scale: float) -> Tensor:
        out = torch.empty((*query.shape[:2], cache.value_width), dtype=query.dtype, device=query.device)
        at = 0
        for row, (start, length) in enumerate(zip(self._batch.starts, self._batch.lengths, strict=True)):
            base = self._batch.first_seen(start) // self._block_tokens * self._block_tokens
            keys = self._past(cache.keys, cache.key_scales, row, base, start + length)
            values = self._past(cache.values, cache.value_scales, row, base, start + length)
            for i in range(length):
                seen = slice(self._batch.first_seen(start + i) - base, start + i + 1 - base)
                out[at + i] = _attend_token(query[at + i], keys[:, seen], values[:, seen], scale).to(query.dtype)
            at += length
        return out

    def _past(self, vectors: Tensor, scales: Tensor | None, row: int, base: int, end: int) -> Tensor:
        """The row's tokens [base, end), gathered through its block table from a block's first token on: fp32
        [kv_heads, tokens, width]."""
        blocks = self._batch.block_tables[row, base // self._block_tokens : -(-end // self._block_tokens)].long()
        gathered = dequantise(vectors[blocks], None if scales is None else scales[blocks])
        return gathered.transpose(0, 1).flatten(1, 2)[:, : end - base]


def _keep(vectors: Tensor, place: Tensor, scales: Tensor | None, block: int, offset: int) -> None:
    """[kv_heads, width] into its place, and the scales into theirs."""
    kept, its_scales = keep(vectors, place.dtype, scaled=scales is not None)
    place.copy_(kept)
    if scales is not None and its_scales is not None:
        scales[block, :, offset] = its_scales


def _attend_token(query: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
    """[heads, width] against [kv_heads, seen, width] and [kv_heads, seen, value_width] -> fp32 [heads, value_width]."""
    group = query.shape[0] // keys.shape[0]
    keys = keys.repeat_interleave(group, dim=0)
    values = values.repeat_interleave(group, dim=0)
    scores = torch.einsum("hd,htd->ht", query.float(), keys) * scale
    return torch.einsum("ht,htd->hd", torch.softmax(scores, dim=-1), values)
