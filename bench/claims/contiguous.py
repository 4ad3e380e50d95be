"""Attention over KV that lies in one piece for each row: what paging is compared with. No table is followed."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from kvik_engine.attention.backend import AttentionBatch
from kvik_engine.attention.kv_cache import KVCache, LayerCache


@dataclass(frozen=True, slots=True)
class _Row:
    block: int
    first: int
    last: int
    """Of the step's tokens."""
    start: int
    """Tokens already in the cache."""
    mask: Tensor | None

    @property
    def end(self) -> int:
        return self.start + self.last - self.first


class ContiguousBackend:
    """See attention.backend. Each row's whole past lies in the one block of its table."""

    name = "contiguous"
    attends_latents = False
    quantised: tuple[str, ...] = ()

    def plan(self, batch: AttentionBatch, cache: KVCache) -> "_ContiguousStep":
        rows, first = [], 0
        dtype = cache.layers[0].keys.dtype
        for row, (start, length) in enumerate(zip(batch.starts, batch.lengths, strict=True)):
            rows.append(
                _Row(
                    block=int(batch.block_tables[row, 0]),
                    first=first,
                    last=first + length,
                    start=start,
                    mask=_hidden(start, length, dtype) if start else None,
                )
            )
            first += length
        return _ContiguousStep(rows)


class _ContiguousStep:
    def __init__(self, rows: list[_Row]) -> None:
        self._rows = rows

    def write(self, key: Tensor, value: Tensor | None, cache: LayerCache) -> None:
        assert value is not None, "no latent cache"
        for row in self._rows:
            cache.keys[row.block, :, row.start : row.end] = key[row.first : row.last].transpose(0, 1)
            cache.values[row.block, :, row.start : row.end] = value[row.first : row.last].transpose(0, 1).nan_to_num()

    def attend(self, query: Tensor, cache: LayerCache, *, scale: float) -> Tensor:
        out = torch.empty(query.shape, dtype=query.dtype)
        for row in self._rows:
            attended = F.scaled_dot_product_attention(
                query[row.first : row.last].transpose(0, 1)[None],
                cache.keys[row.block, :, : row.end][None],
                cache.values[row.block, :, : row.end][None],
                attn_mask=row.mask,
                is_causal=row.mask is None,
                scale=scale,
                enable_gqa=True,
            )
            out[row.first : row.last] = attended[0].transpose(0, 1)
        return out


def _hidden(start: int, length: int, dtype: torch.dtype) -> Tensor:
    """[length, start + length]: -inf on later tokens, else 0."""
    later = torch.arange(start + length) > torch.arange(start, start + length)[:, None]
    return torch.zeros(later.shape, dtype=dtype).masked_fill_(later, float("-inf"))
