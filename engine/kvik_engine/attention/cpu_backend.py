"""The product's CPU path: vectorised torch.

Keys and values are gathered as vectors of head_dim through one index a step, shifted by the layer. Rows of one token
(decode) are gathered together, padded to the longest of their group; rows of many tokens go one at a time. Padding
reads slot 0 of the scratch block, which is never written here and stays zero, and values are made finite when they are
written: a row that overflows spoils neither its neighbours nor the next owner of its blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from kvik_engine.attention.backend import AttentionBatch
from kvik_engine.attention.kv_cache import KVCache, LayerCache

PADDING_BUDGET = 1024
"""Row-tokens of padding in one group of decode rows. Above it a second group costs less than the padding does
(measured at 0.1 us a row-token and 100 us a group and layer)."""
GROUP_TOKENS = 1 << 15
"""Row-tokens of one group, so that what is gathered at once stays within tens of megabytes."""


class CpuBackend:
    """See attention.backend."""

    name = "cpu"

    def plan(self, batch: AttentionBatch, cache: KVCache) -> CpuStep:
        vectors = _Vectors.of(cache)
        decodes = [row for row, length in enumerate(batch.lengths) if length == 1]
        seq_lens = [start + length for start, length in zip(batch.starts, batch.lengths, strict=True)]
        query_starts = [0]
        for length in batch.lengths:
            query_starts.append(query_starts[-1] + length)
        return CpuStep(
            write_index=vectors.of_slots(batch.slots),
            decodes=[
                _DecodeGroup.of(batch, vectors, rows, seq_lens, query_starts)
                for rows in group_by_length(decodes, seq_lens, PADDING_BUDGET)
            ],
            prefills=[
                _PrefillRow.of(batch, vectors, row, query_starts[row])
                for row, length in enumerate(batch.lengths)
                if length > 1
            ],
        )


class CpuStep:
    """One step's indices, the same for every layer."""

    def __init__(
        self, *, write_index: Tensor, decodes: Sequence[_DecodeGroup], prefills: Sequence[_PrefillRow]
    ) -> None:
        self._write_index = write_index
        self._decodes = decodes
        self._prefills = prefills

    def write(self, key: Tensor, value: Tensor, cache: LayerCache) -> None:
        width = key.shape[-1]
        _vectors(cache.keys).index_copy_(0, self._write_index, key.reshape(-1, width))
        _vectors(cache.values).index_copy_(0, self._write_index, value.reshape(-1, width).nan_to_num())

    def attend(self, query: Tensor, cache: LayerCache, *, scale: float) -> Tensor:
        keys, values = _vectors(cache.keys), _vectors(cache.values)
        if len(self._decodes) == 1 and not self._prefills:
            return self._decodes[0].attend(query, keys, values, scale)
        out = torch.empty(query.shape, dtype=query.dtype)
        for group in self._decodes:
            out[group.tokens] = group.attend(query[group.tokens], keys, values, scale)
        for row in self._prefills:
            out[row.first : row.last] = row.attend(query[row.first : row.last], keys, values, scale)
        return out


def group_by_length(
    rows: Sequence[int], seq_lens: Sequence[int], padding_budget: int, group_tokens: int = GROUP_TOKENS
) -> list[list[int]]:
    """Rows by falling length, split where padding to the longest of the group, or the group, would grow too large.

    One group keeps the order of `rows`, so that a step of equal rows needs no reordering.
    """
    groups: list[list[int]] = []
    padding = 0
    for row in sorted(rows, key=lambda r: -seq_lens[r]):
        longest = seq_lens[groups[-1][0]] if groups else 0
        padding += longest - seq_lens[row]
        if not groups or padding > padding_budget or (len(groups[-1]) + 1) * longest > group_tokens:
            groups.append([])
            padding = 0
        groups[-1].append(row)
    return [list(rows)] if len(groups) == 1 else groups


@dataclass(frozen=True, slots=True)
class _Vectors:
    """Where vectors of head_dim lie behind a layer's first: block * block_stride + head * block_tokens + offset."""

    heads: int
    block_tokens: int
    block_stride: int
    dtype: torch.dtype

    @classmethod
    def of(cls, cache: KVCache) -> _Vectors:
        _, layers, _, heads, block_tokens, _ = cache.buffer.shape
        return cls(heads, block_tokens, layers * 2 * heads * block_tokens, cache.buffer.dtype)

    def additive(self, hidden: Tensor) -> Tensor:
        """A bool mask of what must not be seen, as the summand that hides it."""
        return torch.zeros(hidden.shape, dtype=self.dtype).masked_fill_(hidden, float("-inf"))

    def of_slots(self, slots: Tensor) -> Tensor:
        """int64 [tokens] -> int64 [tokens * heads]."""
        first = slots // self.block_tokens * self.block_stride + slots % self.block_tokens
        return (first[:, None] + torch.arange(self.heads) * self.block_tokens).reshape(-1)

    def of_rows(self, block_tables: Tensor, tokens: int) -> Tensor:
        """int32 [rows, blocks] -> int64 [rows, heads, tokens] of each row's first tokens."""
        positions = torch.arange(tokens)
        blocks = block_tables[:, : -(-tokens // self.block_tokens)].long() * self.block_stride
        first = blocks[:, positions // self.block_tokens] + positions % self.block_tokens
        return first[:, None, :] + (torch.arange(self.heads) * self.block_tokens)[None, :, None]


@dataclass(frozen=True, slots=True)
class _DecodeGroup:
    """Rows of one new token each."""

    tokens: Tensor
    """int64 [rows]: their places among the step's tokens."""
    index: Tensor
    """int64 [rows * heads * longest]."""
    mask: Tensor | None
    """Cache dtype [rows, 1, 1, longest]: -inf on padding, else 0; None when all rows are equally long."""
    rows: int
    longest: int

    @classmethod
    def of(
        cls,
        batch: AttentionBatch,
        vectors: _Vectors,
        rows: Sequence[int],
        seq_lens: Sequence[int],
        query_starts: Sequence[int],
    ) -> _DecodeGroup:
        lengths = [seq_lens[row] for row in rows]
        longest = max(lengths)
        index = vectors.of_rows(batch.block_tables[torch.tensor(rows)], longest)
        mask = None
        if min(lengths) < longest:
            padding = torch.arange(longest) >= torch.tensor(lengths)[:, None]
            index = index.masked_fill(padding[:, None, :], 0)
            mask = vectors.additive(padding)[:, None, None, :]
        tokens = torch.tensor([query_starts[row] for row in rows])
        return cls(tokens, index.reshape(-1), mask, len(rows), longest)

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
        """[rows, heads, head_dim] -> the same. The heads of one KV head stand as queries of one attention."""
        width = query.shape[-1]
        grouped = query.reshape(self.rows, self.index.shape[0] // (self.rows * self.longest), -1, width)
        gathered = (self.rows, grouped.shape[1], self.longest, width)
        attended = F.scaled_dot_product_attention(
            grouped,
            keys.index_select(0, self.index).view(gathered),
            values.index_select(0, self.index).view(gathered),
            attn_mask=self.mask,
            scale=scale,
        )
        return attended.reshape(query.shape)


@dataclass(frozen=True, slots=True)
class _PrefillRow:
    """One row of several new tokens: [first, last) of the step."""

    first: int
    last: int
    index: Tensor
    """int64 [heads * seq_len]."""
    heads: int
    mask: Tensor | None
    """Cache dtype [tokens, seq_len]: -inf on later tokens, else 0; None, plain causal, when nothing was cached."""

    @classmethod
    def of(cls, batch: AttentionBatch, vectors: _Vectors, row: int, first: int) -> _PrefillRow:
        start, length = batch.starts[row], batch.lengths[row]
        seq_len = start + length
        index = vectors.of_rows(batch.block_tables[row : row + 1], seq_len).reshape(-1)
        later = torch.arange(seq_len) > torch.arange(start, seq_len)[:, None]
        return cls(first, first + length, index, vectors.heads, vectors.additive(later) if start else None)

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
        """[tokens, heads, head_dim] -> the same."""
        gathered = (1, self.heads, -1, query.shape[-1])
        attended = F.scaled_dot_product_attention(
            query.transpose(0, 1)[None],
            keys.index_select(0, self.index).view(gathered),
            values.index_select(0, self.index).view(gathered),
            attn_mask=self.mask,
            is_causal=self.mask is None,
            scale=scale,
            enable_gqa=True,
        )
        return attended[0].transpose(0, 1)


def _vectors(layer: Tensor) -> Tensor:
    """A layer's strided keys or values as rows of head_dim that start at its first: every block_stride-th region."""
    width = layer.shape[-1]
    rows = (layer.shape[0] - 1) * (layer.stride(0) // width) + layer[0].numel() // width
    return layer.as_strided((rows, width), (width, 1))
