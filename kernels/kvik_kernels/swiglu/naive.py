"""What swiglu must do, in plain torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvik_kernels.activation import Activation

if TYPE_CHECKING:
    import torch


def naive_swiglu(gate_up: torch.Tensor, activation: Activation = Activation.SILU) -> torch.Tensor:
    """The truth of `kvik_kernels.swiglu`; same arguments, any device."""
    import torch.nn.functional as F

    gate, up = gate_up.float().chunk(2, dim=-1)
    activated = F.silu(gate) if activation is Activation.SILU else F.gelu(gate, approximate="tanh")
    return (activated * up).to(gate_up.dtype)
