"""Write new keys and values into their slots of a paged KV cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvik_kernels.checks import (
    require_block_tokens,
    require_dtype,
    require_kept,
    require_same_device,
    require_shape,
    require_unit_stride,
)
from kvik_kernels.quantised import is_quantised, scale_bits, scale_strides

if TYPE_CHECKING:
    import torch


def kv_write(
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slots: torch.Tensor,
    *,
    k_scales: torch.Tensor | None = None,
    v_scales: torch.Tensor | None = None,
) -> None:
    """Store `k[i]` and `v[i]` at slot `slots[i]` of one layer's cache, quantised where the cache is.

    k, v: `[tokens, kv_heads, head_dim]`, last dimension contiguous. k_cache, v_cache: strided views
    `[blocks, kv_heads, block_tokens, kept_width]`, block_tokens a power of two, of k's dtype or quantised
    (kvik_kernels.quantised), chosen apart. slots: int64 `[tokens]`, each
    `block * block_tokens + offset`, at least 0 and inside the cache (not checked: it lies in device memory). Padded
    tokens point into scratch block 0; where two tokens name one slot, either of them may stay. k_scales, v_scales:
    bfloat16 `[blocks, kv_heads, block_tokens, *scales_shape]`, contiguous within a block's head; None without.

    Raises TypeError for a dtype, ValueError for a shape, layout or device that does not fit, naming the argument.
    """
    _check(k, v, k_cache, v_cache, slots, k_scales, v_scales)
    from kvik_kernels.device import device_of

    device = device_of(k, "k")
    device.require_dtype("k_cache", k_cache.dtype)
    device.require_dtype("v_cache", v_cache.dtype)
    if k.shape[0] == 0:
        return
    if is_quantised(k_cache.dtype) or is_quantised(v_cache.dtype):
        _quantise(k, v, k_cache, v_cache, slots, k_scales, v_scales)
    else:
        _copy(k, v, k_cache, v_cache, slots)


def _copy(k: torch.Tensor, v: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, slots: torch.Tensor) -> None:
    from kvik_kernels.kv_write import launch
    from kvik_kernels.kv_write.kernel import kv_write_kernel

    tokens, kv_heads, head_dim = k.shape
    tile = launch.tile(kv_heads, head_dim)
    kv_write_kernel[(tokens,)](
        k,
        v,
        k_cache,
        v_cache,
        slots,
        *k.stride()[:2],
        *v.stride()[:2],
        *k_cache.stride()[:3],
        *v_cache.stride()[:3],
        KV_HEADS=kv_heads,
        HEAD_DIM=head_dim,
        BLOCK_TOKENS=k_cache.shape[2],
        TILE=tile.elements,
        num_warps=tile.warps,
        num_stages=1,
        enable_fp_fusion=True,
    )


def _quantise(
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slots: torch.Tensor,
    k_scales: torch.Tensor | None,
    v_scales: torch.Tensor | None,
) -> None:
    from kvik_kernels.kv_write import launch
    from kvik_kernels.kv_write.kernel import kv_write_quantised_kernel

    tokens, kv_heads, head_dim = k.shape
    tile = launch.quantised_tile(kv_heads, head_dim)
    kv_write_quantised_kernel[(tokens,)](
        k,
        v,
        k_cache,
        v_cache,
        scale_bits(k_scales),
        scale_bits(v_scales),
        slots,
        *k.stride()[:2],
        *v.stride()[:2],
        *k_cache.stride()[:3],
        *v_cache.stride()[:3],
        *scale_strides(k_scales),
        *scale_strides(v_scales),
        KV_HEADS=kv_heads,
        HEAD_DIM=head_dim,
        BLOCK_TOKENS=k_cache.shape[2],
        BLOCK_H=tile.block_h,
        BLOCK_D=tile.block_d,
        num_warps=tile.warps,
        num_stages=1,
        enable_fp_fusion=True,
    )


def _check(
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slots: torch.Tensor,
    k_scales: torch.Tensor | None,
    v_scales: torch.Tensor | None,
) -> None:
    import torch

    require_shape("k", k, (None, None, None))
    require_dtype("k", k, torch.float32, torch.float16, torch.bfloat16)
    require_shape("v", v, k.shape)
    tokens, kv_heads, head_dim = k.shape
    require_shape("k_cache", k_cache, (None, kv_heads, None, None))
    require_block_tokens("k_cache", k_cache.shape[2])
    require_shape("v_cache", v_cache, (*k_cache.shape[:3], None))
    require_dtype("v", v, k.dtype)
    require_kept("k_cache", k_cache, "k_scales", k_scales, k.dtype, head_dim)
    require_kept("v_cache", v_cache, "v_scales", v_scales, k.dtype, head_dim)
    for name, tensor in (("v", v), ("k_cache", k_cache), ("v_cache", v_cache)):
        require_same_device(name, tensor, "k", k)
    for name, tensor in (("k", k), ("v", v), ("k_cache", k_cache), ("v_cache", v_cache)):
        require_unit_stride(name, tensor)
    require_shape("slots", slots, (tokens,))
    require_dtype("slots", slots, torch.int64)
    require_unit_stride("slots", slots)
    require_same_device("slots", slots, "k", k)
