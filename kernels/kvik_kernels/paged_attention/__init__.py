"""Attention of query tokens over a paged KV cache: prefill, chunk and decode behind one function."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvik_kernels.checks import (
    require_block_tokens,
    require_dtype,
    require_kept,
    require_same_device,
    require_shape,
    require_unit_stride,
)
from kvik_kernels.quantised import scale_bits, scale_strides

if TYPE_CHECKING:
    import torch

    from kvik_kernels.device import Device
    from kvik_kernels.paged_attention.launch import Tiles

LOG2_E = 1.4426950408889634


def paged_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    query_starts: torch.Tensor,
    seq_lens: torch.Tensor,
    *,
    scale: float,
    max_query_len: int,
    window: int | None = None,
    k_scales: torch.Tensor | None = None,
    v_scales: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Causal attention of each row's query tokens over the keys and values that its block table names.

    q: `[tokens, q_heads, head_dim]`, the rows' query tokens one after another. k_cache, v_cache: strided views
    `[blocks, kv_heads, block_tokens, kept_width]` that already hold the query tokens' own keys; q_heads is a multiple
    of kv_heads, and head h reads KV head h // (q_heads // kv_heads). block_tables: int32 `[rows, max_blocks]`; entries
    past a sequence are never read. query_starts: int32 `[rows + 1]`. seq_lens: int32 `[rows]`, the keys that the row's
    last query sees: query i of n sees keys 0 .. seq_len - n + i, with a window only the last `window` of them; neither
    keys nor table entries that no query sees are read. max_query_len: no row has more query tokens; 1 selects
    the split-KV decode kernels. scale: applied to q·k before the softmax. k_scales, v_scales: bfloat16
    `[blocks, kv_heads, block_tokens, *scales_shape]`, contiguous within a block's head, where keys or values are
    quantised with scales (kvik_kernels.quantised).

    Returns `out` (made like q when None): `[tokens, q_heads, head_dim]` in q's dtype. A query that sees no key (a
    padded row with seq_len 0) gets zeros; tokens from query_starts[rows] on belong to no row and are not written.

    Raises TypeError for a dtype and ValueError for a shape, layout, device or value that does not fit, naming the
    argument.
    """
    import torch

    out = torch.empty_like(q, memory_format=torch.contiguous_format) if out is None else out
    _check(q, k_cache, v_cache, block_tables, query_starts, seq_lens, scale, max_query_len, window, out)
    require_kept("k_cache", k_cache, "k_scales", k_scales, q.dtype, q.shape[2])
    require_kept("v_cache", v_cache, "v_scales", v_scales, q.dtype, q.shape[2])
    from kvik_kernels.device import device_of

    device = device_of(q, "q")
    device.require_dtype("k_cache", k_cache.dtype)
    device.require_dtype("v_cache", v_cache.dtype)
    if seq_lens.shape[0] == 0 or q.shape[0] == 0:
        return out
    call = _Call(
        device, q, k_cache, v_cache, block_tables, query_starts, seq_lens, k_scales, v_scales, window or 0, out
    )
    if max_query_len == 1:
        _decode(call, scale * LOG2_E)
    else:
        _prefill(call, scale * LOG2_E, max_query_len)
    return out


@dataclass(frozen=True, slots=True)
class _Call:
    """The arguments of one call, checked, and what its kernels share of them."""

    device: Device
    q: torch.Tensor
    k_cache: torch.Tensor
    v_cache: torch.Tensor
    block_tables: torch.Tensor
    query_starts: torch.Tensor
    seq_lens: torch.Tensor
    k_scales: torch.Tensor | None
    v_scales: torch.Tensor | None
    window: int
    out: torch.Tensor

    @property
    def rows(self) -> int:
        return self.seq_lens.shape[0]

    @property
    def group(self) -> int:
        return self.q.shape[1] // self.k_cache.shape[1]

    def shape(self) -> dict[str, int]:
        """What a launch table looks at."""
        return {"group": self.group, "head_dim": self.q.shape[2], "element_bytes": self.q.element_size()}

    def tensors(self) -> tuple[torch.Tensor, ...]:
        return self.q, self.k_cache, self.v_cache, self.block_tables, self.query_starts, self.seq_lens

    def strides(self) -> tuple[torch.Tensor | int | None, ...]:
        """From the block tables' on, and behind them the scales, which may be none, with theirs."""
        scales = (self.k_scales, self.v_scales)
        return (
            self.block_tables.stride(0),
            *self.out.stride()[:2],
            *self.q.stride()[:2],
            *self.k_cache.stride()[:3],
            *self.v_cache.stride()[:3],
            *map(scale_bits, scales),
            *itertools.chain.from_iterable(map(scale_strides, scales)),
        )

    def constants(self, tiles: Tiles) -> dict[str, Any]:
        return {
            "GROUP": self.group,
            "BLOCK_M": tiles.block_m,
            "BLOCK_TOKENS": self.k_cache.shape[2],
            "HEAD_DIM": self.q.shape[2],
            "BLOCK_D": tiles.block_d,
            "TILE": tiles.tile,
            "PRECISION": "ieee",
            "WINDOW": self.window,
            "num_warps": tiles.warps,
            "num_stages": tiles.stages,
            "enable_fp_fusion": True,
        }


def _prefill(call: _Call, log2_scale: float, max_query_len: int) -> None:
    from kvik_kernels.paged_attention import launch
    from kvik_kernels.paged_attention.kernel import prefill_kernel

    tiles = launch.prefill_tiles(call.device, **call.shape(), max_query_len=max_query_len)
    grid = launch.prefill_grid(
        tokens=call.q.shape[0], rows=call.rows, kv_heads=call.k_cache.shape[1], block_q=tiles.block_q
    )
    prefill_kernel[grid](
        call.out,
        *call.tensors(),
        log2_scale,
        call.rows,
        *call.strides(),
        BLOCK_Q=tiles.block_q,
        **call.constants(tiles),
    )


def _decode(call: _Call, log2_scale: float) -> None:
    import torch

    from kvik_kernels.paged_attention import launch
    from kvik_kernels.paged_attention.kernel import decode_kernel

    _, q_heads, head_dim = call.q.shape
    _, kv_heads, block_tokens, _ = call.k_cache.shape
    tiles = launch.decode_tiles(call.device, **call.shape())
    # The table's width bounds every sequence, and the host knows it without waiting for the device.
    longest = call.block_tables.shape[1] * block_tokens
    splits = launch.decode_splits(
        processors=call.device.processors,
        rows=call.rows,
        kv_heads=kv_heads,
        longest=min(longest, call.window or longest),
    )
    parts = (call.rows, q_heads, splits) if splits > 1 else (1,)
    log_sum = torch.empty(parts, dtype=torch.float32, device=call.q.device)
    partial = torch.empty((*parts, head_dim) if splits > 1 else parts, dtype=torch.float32, device=call.q.device)
    decode_kernel[(call.rows, kv_heads, splits)](
        call.out,
        partial,
        log_sum,
        *call.tensors(),
        log2_scale,
        splits,
        *call.strides(),
        KV_HEADS=kv_heads,
        MIN_SEGMENT=launch.MIN_SEGMENT_TOKENS,
        SPLIT=splits > 1,
        **call.constants(tiles),
    )
    if splits > 1:
        _reduce(call, tiles, partial, log_sum, splits)


def _reduce(call: _Call, tiles: Tiles, partial: torch.Tensor, log_sum: torch.Tensor, splits: int) -> None:
    from kvik_kernels.paged_attention import launch
    from kvik_kernels.paged_attention.kernel import reduce_kernel

    _, q_heads, head_dim = call.q.shape
    reduce_kernel[(call.rows, q_heads)](
        call.out,
        partial,
        log_sum,
        call.query_starts,
        call.seq_lens,
        splits,
        *call.out.stride()[:2],
        Q_HEADS=q_heads,
        HEAD_DIM=head_dim,
        BLOCK_D=tiles.block_d,
        TILE=tiles.tile,
        MIN_SEGMENT=launch.MIN_SEGMENT_TOKENS,
        CHUNK=launch.REDUCE_CHUNK,
        WINDOW=call.window,
        num_warps=launch.REDUCE_WARPS,
        num_stages=1,
        enable_fp_fusion=True,
    )


def _check(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    query_starts: torch.Tensor,
    seq_lens: torch.Tensor,
    scale: float,
    max_query_len: int,
    window: int | None,
    out: torch.Tensor,
) -> None:
    import torch

    require_shape("q", q, (None, None, None))
    require_dtype("q", q, torch.float32, torch.float16, torch.bfloat16)
    _, q_heads, head_dim = q.shape
    if not 1 <= head_dim <= 256:
        raise ValueError(f"q: head dimensions of 1 to 256 are supported, got {head_dim}")
    require_shape("k_cache", k_cache, (None, None, None, None))
    require_block_tokens("k_cache", k_cache.shape[2])
    require_shape("v_cache", v_cache, (*k_cache.shape[:3], None))
    if k_cache.shape[1] == 0 or q_heads % k_cache.shape[1]:
        raise ValueError(f"q: {q_heads} query heads are no multiple of the {k_cache.shape[1]} KV heads of k_cache")
    require_shape("out", out, q.shape)
    require_dtype("out", out, q.dtype)
    rows = seq_lens.shape[0] if seq_lens.dim() else 0
    require_shape("seq_lens", seq_lens, (None,))
    require_shape("block_tables", block_tables, (rows, None))
    require_shape("query_starts", query_starts, (rows + 1,))
    metadata = (("block_tables", block_tables), ("query_starts", query_starts), ("seq_lens", seq_lens))
    for name, tensor in metadata:
        require_dtype(name, tensor, torch.int32)
    for name, tensor in (("k_cache", k_cache), ("v_cache", v_cache), ("out", out), *metadata):
        require_unit_stride(name, tensor)
        require_same_device(name, tensor, "q", q)
    require_unit_stride("q", q)
    if not 0.0 < scale < float("inf"):
        raise ValueError(f"scale: expected a positive number, got {scale}")
    if max_query_len < 1:
        raise ValueError(f"max_query_len: expected at least 1, got {max_query_len}")
    if window is not None and window < 1:
        raise ValueError(f"window: expected at least 1 or None, got {window}")
