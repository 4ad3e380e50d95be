"""Write new keys and values into their slots of a paged KV cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvik_kernels.checks import (
    require_block_tokens,
    require_dtype,
    require_same_device,
    require_shape,
    require_unit_stride,
)

if TYPE_CHECKING:
    import torch


def kv_write(
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slots: torch.Tensor,
) -> None:
    """Store `k[i]` and `v[i]` at slot `slots[i]` of one layer's cache.

    k, v: `[tokens, kv_heads, head_dim]`, last dimension contiguous. k_cache, v_cache: strided views
    `[blocks, kv_heads, block_tokens, head_dim]`, block_tokens a power of two. slots: int64 `[tokens]`, each
    `block * block_tokens + offset`, at least 0 and inside the cache (not checked: it lies in device memory). Padded
    tokens point into scratch block 0; where two tokens name one slot, either of them may stay.

    Raises TypeError for a dtype, ValueError for a shape, layout or device that does not fit, naming the argument.
    """
    _check(k, v, k_cache, v_cache, slots)
    from kvik_kernels.device import device_of
    from kvik_kernels.kv_write import launch

    device_of(k, "k")
    tokens, kv_heads, head_dim = k.shape
    if tokens == 0:
        return
    from kvik_kernels.kv_write.kernel import kv_write_kernel

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


def _check(k: torch.Tensor, v: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, slots: torch.Tensor) -> None:
    import torch

    require_shape("k", k, (None, None, None))
    require_dtype("k", k, torch.float32, torch.float16, torch.bfloat16)
    require_shape("v", v, k.shape)
    tokens, kv_heads, head_dim = k.shape
    require_shape("k_cache", k_cache, (None, kv_heads, None, head_dim))
    require_block_tokens("k_cache", k_cache.shape[2])
    require_shape("v_cache", v_cache, k_cache.shape)
    for name, tensor in (("v", v), ("k_cache", k_cache), ("v_cache", v_cache)):
        require_dtype(name, tensor, k.dtype)
        require_same_device(name, tensor, "k", k)
    for name, tensor in (("k", k), ("v", v), ("k_cache", k_cache), ("v_cache", v_cache)):
        require_unit_stride(name, tensor)
    require_shape("slots", slots, (tokens,))
    require_dtype("slots", slots, torch.int64)
    require_unit_stride("slots", slots)
    require_same_device("slots", slots, "k", k)
