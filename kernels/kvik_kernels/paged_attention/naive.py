"""What paged_attention must compute, in plain torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvik_kernels.quantised import dequantise

if TYPE_CHECKING:
    import torch


def naive_paged_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    query_starts: torch.Tensor,
    seq_lens: torch.Tensor,
    *,
    scale: float,
    window: int | None = None,
    k_scales: torch.Tensor | None = None,
    v_scales: torch.Tensor | None = None,
) -> torch.Tensor:
    """The truth of `kvik_kernels.paged_attention`: one row after another, in float32 whatever the input.

    Arguments as there, any device and dtype; returns float32 `[tokens, q_heads, head_dim]` with zeros for tokens that
    belong to no row.
    """
    import torch

    q_heads = q.shape[1]
    group = q_heads // k_cache.shape[1]
    out = torch.zeros(q.shape, dtype=torch.float32, device=q.device)
    starts = query_starts.tolist()
    for row, seq_len in enumerate(seq_lens.tolist()):
        start, end = starts[row], starts[row + 1]
        if start == end or seq_len == 0:
            continue
        queries = end - start
        first = 0 if window is None else max(0, seq_len - queries + 1 - window)
        keys = _gather(k_cache, k_scales, block_tables[row], first, seq_len).repeat_interleave(group, dim=1)
        values = _gather(v_cache, v_scales, block_tables[row], first, seq_len).repeat_interleave(group, dim=1)
        scores = torch.einsum("qhd,khd->hqk", q[start:end].float(), keys) * scale
        position = torch.arange(seq_len - queries, seq_len, device=q.device)[:, None]
        key = torch.arange(first, seq_len, device=q.device)[None, :]
        hidden = key > position
        if window is not None:
            hidden |= key <= position - window
        weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
        out[start:end] = torch.einsum("hqk,khd->qhd", weights, values)
    return out


def _gather(
    cache: torch.Tensor, scales: torch.Tensor | None, table: torch.Tensor, first: int, end: int
) -> torch.Tensor:
    """Tokens [first, end) of a sequence as float32 [end - first, kv_heads, head_dim]."""
    block_tokens = cache.shape[2]
    blocks = table[first // block_tokens : -(-end // block_tokens)].long()
    base = first // block_tokens * block_tokens
    found = dequantise(cache[blocks], None if scales is None else scales[blocks])
    return found.transpose(1, 2).flatten(0, 1)[first - base : end - base]
