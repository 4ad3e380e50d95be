"""Root mean square norm of each row, of a sum where there is something to add."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvik_kernels.checks import require_dtype, require_same_device, require_shape, require_unit_stride

if TYPE_CHECKING:
    import torch


def rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    dtype: torch.dtype,
    *,
    addend: torch.Tensor | None = None,
) -> torch.Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension, in fp32, rounded once to `dtype`.

    x: float32 `[rows, width]`, rows any stride apart; weight: float32 `[width]`. `addend`, `[rows, width]` in any of
    the dtypes, is added to x in place before. Returns `[rows, width]` of `dtype`: float32, float16 or bfloat16.

    Raises TypeError for a dtype, ValueError for a shape, layout or device that does not fit, naming the argument.
    """
    import torch

    _check(x, weight, dtype, addend)
    from kvik_kernels.device import device_of
    from kvik_kernels.rms_norm import launch

    rows, width = x.shape
    tile = launch.tile(width)
    device_of(x, "x")
    out = torch.empty((rows, width), dtype=dtype, device=x.device)
    if rows == 0:
        return out
    from kvik_kernels.rms_norm.kernel import rms_norm_kernel

    rms_norm_kernel[(rows,)](
        out,
        x,
        addend,
        weight,
        x.stride(0),
        None if addend is None else addend.stride(0),
        eps,
        WIDTH=width,
        TILE=tile.elements,
        num_warps=tile.warps,
        num_stages=1,
        enable_fp_fusion=True,
    )
    return out


def _check(x: torch.Tensor, weight: torch.Tensor, dtype: torch.dtype, addend: torch.Tensor | None) -> None:
    import torch

    kinds = (torch.float32, torch.float16, torch.bfloat16)
    require_shape("x", x, (None, None))
    require_dtype("x", x, torch.float32)
    require_unit_stride("x", x)
    require_shape("weight", weight, (x.shape[1],))
    require_dtype("weight", weight, torch.float32)
    require_unit_stride("weight", weight)
    require_same_device("weight", weight, "x", x)
    if dtype not in kinds:
        raise TypeError(f"dtype: expected {' or '.join(map(str, kinds))}, got {dtype}")
    if addend is not None:
        require_shape("addend", addend, x.shape)
        require_dtype("addend", addend, *kinds)
        require_unit_stride("addend", addend)
        require_same_device("addend", addend, "x", x)
