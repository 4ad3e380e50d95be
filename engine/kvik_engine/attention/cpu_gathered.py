"""Attention of the CPU path in vectorised torch: keys and values are gathered, then attended to. Quantised ones are in
cpu_dequantised.

They are gathered as vectors through one index a step, shifted by the layer: a row's tokens from the first that any of
its queries sees. Rows of one token (decode) are gathered together, padded to the longest of their group; rows of many
tokens go one at a time. Padding reads slot 0 of the scratch block, which is never written here and stays zero, and
values are made finite when they are written: a row that overflows spoils neither its neighbours nor the next owner of
its blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from kvik_engine.attention.backend import AttentionBatch
from kvik_engine.attention.cpu_dequantised import DequantisedPast
from kvik_engine.attention.kv_cache import KVCache, LayerCache

PADDING_BUDGET = 1024
"""Row-tokens of padding in one group of decode rows. Above it a second group costs less than the padding does
(measured at 0.1 us a row-token and 100 us a group and layer)."""
GROUP_TOKENS = 1 << 15
"""Row-tokens of one group, so that what is gathered at once stays within tens of megabytes."""


class TorchPath:
    """See cpu_backend.CpuPath."""

    name = ""
    most_tokens = 1

    def plan(self, batch: AttentionBatch, rows: Sequence[int], cache: KVCache) -> list[DecodeGroup]:
        seen = [
            start + length - batch.first_seen(start) for start, length in zip(batch.starts, batch.lengths, strict=True)
        ]
        return [DecodeGroup.of(batch, cache, group, seen) for group in group_by_length(rows, seen, PADDING_BUDGET)]

    def plan_writes(self, batch: AttentionBatch, cache: KVCache) -> IndexedWrites:
        return IndexedWrites(Vectors.of(cache).of_slots(batch.slots))


@dataclass(frozen=True, slots=True)
class IndexedWrites:
    """See cpu_backend.TokenWrites."""

    index: Tensor
    """int64 [tokens * heads]."""

    @property
    def replayed(self) -> None:
        return None

    def write(self, key: Tensor, value: Tensor | None, cache: LayerCache) -> None:
        if value is None:
            # The value is a part of the key: finite as well.
            vectors_of(cache.keys).index_copy_(0, self.index, key.reshape(-1, key.shape[-1]).nan_to_num())
            return
        width = key.shape[-1]
        vectors_of(cache.keys).index_copy_(0, self.index, key.reshape(-1, width))
        vectors_of(cache.values).index_copy_(0, self.index, value.reshape(-1, width).nan_to_num())


def group_by_length(
    rows: Sequence[int], lengths: Sequence[int], padding_budget: int, group_tokens: int = GROUP_TOKENS
) -> list[list[int]]:
    """Rows by falling length, split where padding to the longest of the group, or the group, would grow too large.

    One group keeps the order of `rows`, so that a step of equal rows needs no reordering.
    """
    groups: list[list[int]] = []
    padding = 0
    for row in sorted(rows, key=lambda r: -lengths[r]):
        longest = lengths[groups[-1][0]] if groups else 0
        padding += longest - lengths[row]
        if not groups or padding > padding_budget or (len(groups[-1]) + 1) * longest > group_tokens:
            groups.append([])
            padding = 0
        groups[-1].append(row)
    return [list(rows)] if len(groups) == 1 else groups


@dataclass(frozen=True, slots=True)
class Vectors:
    """Where vectors lie behind a layer's first: block * block_stride + head * block_tokens + offset."""

    heads: int
    block_tokens: int
    block_stride: int

    @classmethod
    def of(cls, cache: KVCache) -> Vectors:
        layout = cache.layout
        vector_bytes = layout.width * cache.dtype.itemsize
        return cls(layout.heads, layout.block_tokens, layout.block_bytes // vector_bytes)

    def of_slots(self, slots: Tensor) -> Tensor:
        """int64 [tokens] -> int64 [tokens * heads]."""
        first = slots // self.block_tokens * self.block_stride + slots % self.block_tokens
        return (first[:, None] + torch.arange(self.heads) * self.block_tokens).reshape(-1)

    def of_row(self, block_table: Tensor, first: int, end: int) -> Tensor:
        """int32 [blocks] -> int64 [heads * (end - first)] of one row's tokens [first, end)."""
        positions = torch.arange(first, end)
        return self._of_heads(block_table.long()[positions // self.block_tokens], positions).reshape(-1)

    def of_rows(self, block_tables: Tensor, tokens: int) -> Tensor:
        """int32 [rows, blocks] -> int64 [rows, heads, tokens] of each row's first tokens."""
        positions = torch.arange(tokens)
        blocks = block_tables[:, : -(-tokens // self.block_tokens)].long()
        return self._of_heads(blocks[:, positions // self.block_tokens], positions)

    def of_windows(self, block_tables: Tensor, firsts: Tensor, tokens: int) -> Tensor:
        """The same of each row's tokens from `firsts` [rows] on. Behind a table's end its last entry stands."""
        last = block_tables.shape[1] * self.block_tokens - 1
        positions = (firsts[:, None] + torch.arange(tokens)).clamp_(max=last)
        return self._of_heads(block_tables.long().gather(1, positions // self.block_tokens), positions)

    def _of_heads(self, blocks: Tensor, positions: Tensor) -> Tensor:
        """Blocks [..., tokens] that hold the positions -> [..., heads, tokens]."""
        first = blocks * self.block_stride + positions % self.block_tokens
        return first[..., None, :] + (torch.arange(self.heads) * self.block_tokens)[:, None]


@dataclass(frozen=True, slots=True)
class DecodeGroup:
    """Rows of one new token each."""

    tokens: Tensor
    """int64 [rows]"""
    index: Tensor
    """int64 [rows * heads * longest]."""
    mask: Tensor | None
    """Cache dtype [rows, 1, 1, longest]: -inf on padding, else 0; None when all rows are equally long."""
    rows: int
    longest: int

    @property
    def replayed(self) -> None:
        return None

    @classmethod
    def of(
        cls,
        batch: AttentionBatch,
        cache: KVCache,
        rows: Sequence[int],
        seen: Sequence[int],
    ) -> DecodeGroup:
        """`seen`: by row of the batch, how many tokens its query sees."""
        vectors = Vectors.of(cache)
        lengths = [seen[row] for row in rows]
        longest = max(lengths)
        tables = batch.block_tables[torch.tensor(rows)]
        if batch.window is None:
            index = vectors.of_rows(tables, longest)
        else:
            firsts = torch.tensor([batch.starts[row] + 1 - seen[row] for row in rows])
            index = vectors.of_windows(tables, firsts, longest)
        mask = None
        if min(lengths) < longest:
            padding = torch.arange(longest) >= torch.tensor(lengths)[:, None]
            index = index.masked_fill(padding[:, None, :], 0)
            mask = additive(padding, cache.dtype)[:, None, None, :]
        tokens = batch.query_starts[torch.tensor(rows)]
        return cls(tokens, index.reshape(-1), mask, len(rows), longest)

    def attend(self, query: Tensor, cache: LayerCache, *, scale: float) -> Tensor:
        """The heads of one KV head stand as queries of one attention."""
        width, value_width = query.shape[-1], cache.value_width
        grouped = query.reshape(self.rows, self.index.shape[0] // (self.rows * self.longest), -1, width)
        gathered = (self.rows, grouped.shape[1], self.longest, width)
        keys = vectors_of(cache.keys).index_select(0, self.index).view(gathered)
        attended = F.scaled_dot_product_attention(
            grouped,
            keys,
            keys[..., :value_width]
            if cache.latent
            else vectors_of(cache.values).index_select(0, self.index).view(gathered),
            attn_mask=self.mask,
            scale=scale,
        )
        return attended.reshape(*query.shape[:2], value_width)


class Past(Protocol):
    """The tokens that a row's queries see together, in one layer: [heads, tokens, width] each."""

    def keys(self, cache: LayerCache) -> Tensor: ...

    def values(self, cache: LayerCache) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class IndexedPast:
    """See Past."""

    index: Tensor
    """int64 [heads * tokens]."""
    heads: int

    def keys(self, cache: LayerCache) -> Tensor:
        return self._gathered(cache.keys)

    def values(self, cache: LayerCache) -> Tensor:
        return self._gathered(cache.values)

    def _gathered(self, layer: Tensor) -> Tensor:
        return vectors_of(layer).index_select(0, self.index).view(self.heads, -1, layer.shape[-1])


@dataclass(frozen=True, slots=True)
class PrefillRow:
    """One row of several new tokens."""

    tokens: slice
    past: Past
    mask: Tensor | None
    """Cache dtype [tokens, seen tokens]: -inf on what a query does not see, else 0; None: plain causal."""

    @property
    def replayed(self) -> None:
        return None

    @classmethod
    def of(cls, batch: AttentionBatch, cache: KVCache, row: int, first: int) -> PrefillRow:
        """`first`: the row's first token among the step's."""
        start, length = batch.starts[row], batch.lengths[row]
        begin, end = batch.first_seen(start), start + length
        mask = None
        if start or batch.first_seen(end - 1):
            keys, queries = torch.arange(begin, end), torch.arange(start, end)[:, None]
            hidden = keys > queries
            if batch.window is not None:
                hidden |= keys <= queries - batch.window
            mask = additive(hidden, cache.dtype)
        return cls(slice(first, first + length), _past(batch.block_tables[row], begin, end, cache), mask)

    def attend(self, query: Tensor, cache: LayerCache, *, scale: float) -> Tensor:
        keys = self.past.keys(cache)
        if cache.latent:
            return self._attend_latent(query, keys[0], cache.value_width, scale)
        attended = F.scaled_dot_product_attention(
            query.transpose(0, 1)[None],
            keys[None],
            self.past.values(cache)[None],
            attn_mask=self.mask,
            is_causal=self.mask is None,
            scale=scale,
            enable_gqa=True,
        )
        return attended[0].transpose(0, 1)

    def _attend_latent(self, query: Tensor, keys: Tensor, value_width: int, scale: float) -> Tensor:
        """All heads share the keys [seen tokens, width]: one product of all of them, where torch's attention would
        repeat the keys for each head."""
        tokens, heads, width = query.shape
        scores = (query.reshape(tokens * heads, width) @ keys.t()).view(tokens, heads, -1).float() * scale
        if self.mask is None:
            scores += torch.full((tokens, tokens), float("-inf")).triu(1)[:, None]
        else:
            scores += self.mask[:, None]
        weights = scores.softmax(-1).to(query.dtype)
        return (weights.view(tokens * heads, -1) @ keys[:, :value_width]).view(tokens, heads, value_width)


def _past(block_table: Tensor, begin: int, end: int, cache: KVCache) -> Past:
    """A row's tokens [begin, end), as the cache keeps them."""
    if cache.layout.formats.quantised:
        return DequantisedPast.of(block_table, begin, end, cache)
    return IndexedPast(Vectors.of(cache).of_row(block_table, begin, end), cache.layout.heads)


def additive(hidden: Tensor, dtype: torch.dtype) -> Tensor:
    """A bool mask of what must not be seen, as the summand that hides it."""
    return torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, float("-inf"))


def vectors_of(layer: Tensor) -> Tensor:
    """A layer's strided keys or values as vectors that start at its first: every block_stride-th region."""
    width = layer.shape[-1]
    rows = (layer.shape[0] - 1) * (layer.stride(0) // width) + layer[0].numel() // width
    return layer.as_strided((rows, width), (width, 1))
