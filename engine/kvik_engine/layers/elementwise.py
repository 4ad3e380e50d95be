"""What layers do between their products, to rows, heads and elements: by torch, or by kernels where there are some."""

from __future__ import annotations

from typing import Final, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from kvik_kernels import rms_norm, rotary, swiglu
from kvik_kernels.activation import Activation
from kvik_kernels.cpu import elementwise as kernels
from kvik_kernels.cpu.library import Library


class Elementwise(Protocol):
    """Rows are tokens. What is rotated or gated belongs to the call: its memory may hold the result."""

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
        """x / sqrt(mean(x^2) + eps) * weight over the last dimension: fp32 in, `dtype` out."""
        ...

    def add_rms_norm(self, x: Tensor, addend: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
        """x += addend, in place, and the norm of that: fp32 [rows, width] and the same in any dtype in, `dtype` out."""
        ...

    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """[tokens, heads, head_dim] -> the same: pairs (i, i + head_dim / 2) of each head turned in fp32. cos, sin:
        fp32 [tokens, 1, head_dim / 2]."""
        ...

    def gate(self, gate_up: Tensor, activation: Activation) -> Tensor:
        """[tokens, 2 width] -> activation(gate) * up [tokens, width]."""
        ...


class TorchElementwise:
    """On any device."""

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
        return F.rms_norm(x, weight.shape, weight, eps).to(dtype)

    def add_rms_norm(self, x: Tensor, addend: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
        return self.rms_norm(x.add_(addend), weight, eps, dtype)

    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        first, second = x.chunk(2, dim=-1)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)

    def gate(self, gate_up: Tensor, activation: Activation) -> Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        activated = F.silu(gate) if activation is Activation.SILU else F.gelu(gate, approximate="tanh")
        return activated.mul_(up)


BY_TORCH: Final = TorchElementwise()


class CpuElementwise:
    """Our own kernels on CPUs, in one call each where torch makes ten; torch's operations for widths that they do not
    know."""

    def __init__(self, library: Library) -> None:
        self._kernels = kernels.Elementwise(library, threads=torch.get_num_threads())

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
        width = x.shape[-1]
        if not kernels.serves(width, dtype):
            return BY_TORCH.rms_norm(x, weight, eps, dtype)
        return self._kernels.rms_norm(x.reshape(-1, width).contiguous(), weight, eps, dtype).view(x.shape)

    def add_rms_norm(self, x: Tensor, addend: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
        # What several experts add, for one, is wider than what comes out.
        if addend.dtype is not dtype or not kernels.serves(x.shape[-1], dtype):
            return self.rms_norm(x.add_(addend), weight, eps, dtype)
        return self._kernels.rms_norm(x, weight, eps, dtype, addend=addend)

    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        if x.shape[-1] % 2 or not kernels.serves(x.shape[-1] // 2, x.dtype) or x.stride(-1) != 1:
            return BY_TORCH.rotate(x, cos, sin)
        return self._kernels.rotate(x, cos, sin)

    def gate(self, gate_up: Tensor, activation: Activation) -> Tensor:
        if not kernels.serves(gate_up.shape[-1] // 2, gate_up.dtype):
            return BY_TORCH.gate(gate_up, activation)
        return self._kernels.gate(gate_up, activation)


class TritonElementwise:
    """Kernels on CUDA and ROCm devices, for all widths and dtypes of models that are served."""

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
        return rms_norm(x.reshape(-1, x.shape[-1]), weight, eps, dtype).view(x.shape)

    def add_rms_norm(self, x: Tensor, addend: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
        return rms_norm(x, weight, eps, dtype, addend=addend)

    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        rotary(x, cos, sin)
        return x

    def gate(self, gate_up: Tensor, activation: Activation) -> Tensor:
        return swiglu(gate_up, activation)
