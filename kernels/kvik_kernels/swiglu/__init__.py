"""The gate of a feed-forward network: activation(gate) * up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvik_kernels.activation import Activation
from kvik_kernels.checks import require_dtype, require_shape, require_unit_stride

if TYPE_CHECKING:
    import torch


def swiglu(gate_up: torch.Tensor, activation: Activation = Activation.SILU) -> torch.Tensor:
    """activation(gate) * up in fp32, rounded once: SwiGLU, or GeGLU with GELU_TANH (arXiv 2002.05202).

    gate_up: `[rows, 2 width]`, gate then up, in float32, float16 or bfloat16, rows any stride apart. Returns
    `[rows, width]`.

    Raises TypeError for a dtype, ValueError for a shape, layout or device that does not fit, naming the argument.
    """
    import torch

    require_shape("gate_up", gate_up, (None, None))
    require_dtype("gate_up", gate_up, torch.float32, torch.float16, torch.bfloat16)
    require_unit_stride("gate_up", gate_up)
    rows, both = gate_up.shape
    if both < 2 or both % 2:
        raise ValueError(f"gate_up: expected rows of gate and up, equally long, got {both} elements")
    from kvik_kernels.device import device_of
    from kvik_kernels.swiglu import launch

    device_of(gate_up, "gate_up")
    width = both // 2
    out = torch.empty((rows, width), dtype=gate_up.dtype, device=gate_up.device)
    if rows == 0:
        return out
    from kvik_kernels.swiglu.kernel import swiglu_kernel

    tile = launch.tile(width)
    swiglu_kernel[(rows, -(-width // tile.elements))](
        out,
        gate_up,
        gate_up.stride(0),
        WIDTH=width,
        GELU=activation is Activation.GELU_TANH,
        TILE=tile.elements,
        num_warps=tile.warps,
        num_stages=1,
        enable_fp_fusion=True,
    )
    return out
