"""Feed-forward network with a gate (SwiGLU and GeGLU, arXiv 2002.05202)."""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor

from kvik_engine.layers.linear import Linear
from kvik_engine.layers.tensors import TensorSource


def gelu_tanh(x: Tensor) -> Tensor:
    """The tanh approximation of GELU (arXiv 1606.08415)."""
    return F.gelu(x, approximate="tanh")


class GatedMLP:
    """down(activation(gate(x)) * up(x)); gate and up are one matrix."""

    def __init__(self, gate_up: Linear, down: Linear, activation: Callable[[Tensor], Tensor]) -> None:
        self.gate_up = gate_up
        self.down = down
        self.activation = activation

    @classmethod
    def take(
        cls,
        tensors: TensorSource,
        name: str,
        hidden: int,
        intermediate: int,
        *,
        bias: bool,
        activation: Callable[[Tensor], Tensor] = F.silu,
    ) -> GatedMLP:
        parts = [(f"{name}.gate_proj", intermediate), (f"{name}.up_proj", intermediate)]
        return cls(
            Linear.take_stacked(tensors, parts, hidden, bias=bias),
            Linear.take(tensors, f"{name}.down_proj", hidden, intermediate, bias=bias),
            activation,
        )

    def __call__(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(self.activation(gate).mul_(up))
