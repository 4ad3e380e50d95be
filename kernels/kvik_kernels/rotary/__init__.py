"""Rotary position embedding, half-split, in place."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvik_kernels.checks import require_dtype, require_same_device, require_shape, require_unit_stride

if TYPE_CHECKING:
    import torch


def rotary(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    """Turn the pairs (i, i + head_dim / 2) of each head in place, in fp32, rounded once.

    x: `[tokens, heads, head_dim]` in float32, float16 or bfloat16, last dimension contiguous, so that queries and keys
    may be a slice of one projection. cos, sin: float32 `[tokens, 1, head_dim / 2]`, of each token's angles.

    Raises TypeError for a dtype, ValueError for a shape, layout or device that does not fit, naming the argument.
    """
    _check(x, cos, sin)
    from kvik_kernels.device import device_of
    from kvik_kernels.rotary import launch

    device_of(x, "x")
    tokens, heads, head_dim = x.shape
    if tokens == 0:
        return
    from kvik_kernels.rotary.kernel import rotary_kernel

    tile = launch.tile(heads, head_dim)
    rotary_kernel[(tokens, -(-heads // tile.block_h))](
        x,
        cos,
        sin,
        *x.stride()[:2],
        cos.stride(0),
        sin.stride(0),
        HEADS=heads,
        HALF=head_dim // 2,
        BLOCK_H=tile.block_h,
        BLOCK_P=tile.block_p,
        num_warps=tile.warps,
        num_stages=1,
        enable_fp_fusion=True,
    )


def _check(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    import torch

    require_shape("x", x, (None, None, None))
    require_dtype("x", x, torch.float32, torch.float16, torch.bfloat16)
    require_unit_stride("x", x)
    tokens, heads, head_dim = x.shape
    if heads < 1 or head_dim < 2 or head_dim % 2:
        raise ValueError(f"x: expected heads of an even number of elements, got {list(x.shape)}")
    for name, table in (("cos", cos), ("sin", sin)):
        require_shape(name, table, (tokens, 1, head_dim // 2))
        require_dtype(name, table, torch.float32)
        require_unit_stride(name, table)
        require_same_device(name, table, "x", x)
