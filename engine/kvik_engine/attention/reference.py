"""The oracle: plain torch, one row and one head group after the other, in fp32. Slow and obviously right."""

from __future__ import annotations

import torch
from torch import Tensor

from kvik_engine.attention.backend import AttentionBatch
from kvik_engine.attention.kv_cache import KVCache, LayerCache


class ReferenceBackend:
    """See attention.backend."""

    name = "reference"
    attends_latents = True

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
            cache.keys[block, :, offset] = key[token]
            if value is not None:
                cache.values[block, :, offset] = value[token]

    def attend(self, query: Tensor, cache: LayerCache, *, scale: float) -> Tensor:
        width = cache.values.shape[-1]
        out = torch.empty((*query.shape[:2], width), dtype=query.dtype, device=query.device)
        at = 0
        for row, (start, length) in enumerate(zip(self._batch.starts, self._batch.lengths, strict=True)):
            base = self._batch.first_seen(start) // self._block_tokens * self._block_tokens
            keys = self._past(cache.keys, row, base, start + length)
            values = self._past(cache.values, row, base, start + length)
            for i in range(length):
                seen = slice(self._batch.first_seen(start + i) - base, start + i + 1 - base)
                out[at + i] = _attend_token(query[at + i], keys[:, seen], values[:, seen], scale).to(query.dtype)
            at += length
        return out

    def _past(self, cache: Tensor, row: int, base: int, end: int) -> Tensor:
        """The row's tokens [base, end), gathered through its block table from a block's first token on: fp32
        [kv_heads, tokens, width]."""
        blocks = self._batch.block_tables[row, base // self._block_tokens : -(-end // self._block_tokens)].long()
        gathered = cache[blocks].float().transpose(0, 1)
        return gathered.reshape(cache.shape[1], -1, cache.shape[3])[:, : end - base]


def _attend_token(query: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
    """[heads, width] against [kv_heads, seen, width] and [kv_heads, seen, value_width] -> fp32 [heads, value_width]."""
    group = query.shape[0] // keys.shape[0]
    keys = keys.repeat_interleave(group, dim=0)
    values = values.repeat_interleave(group, dim=0)
    scores = torch.einsum("hd,htd->ht", query.float(), keys) * scale
    return torch.einsum("ht,htd->hd", torch.softmax(scores, dim=-1), values)
