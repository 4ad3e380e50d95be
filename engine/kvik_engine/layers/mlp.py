"""Feed-forward network with a gate (SwiGLU and GeGLU, arXiv 2002.05202)."""

from __future__ import annotations

from torch import Tensor

from kvik_engine.layers.elementwise import Elementwise
from kvik_engine.layers.linear import Linear
from kvik_engine.layers.tensors import TensorSource
from kvik_kernels.activation import Activation


class GatedMLP:
    """down(activation(gate(x)) * up(x)); gate and up are one matrix."""

    def __init__(self, gate_up: Linear, down: Linear, activation: Activation, elementwise: Elementwise) -> None:
        self.gate_up = gate_up
        self.down = down
        self.activation = activation
        self.elementwise = elementwise

    @classmethod
    def take(
        cls,
        tensors: TensorSource,
        name: str,
        hidden: int,
        intermediate: int,
        *,
        bias: bool,
        activation: Activation = Activation.SILU,
    ) -> GatedMLP:
        parts = [(f"{name}.gate_proj", intermediate), (f"{name}.up_proj", intermediate)]
        return cls(
            Linear.take_stacked(tensors, parts, hidden, bias=bias),
            Linear.take(tensors, f"{name}.down_proj", hidden, intermediate, bias=bias),
            activation,
            tensors.elementwise,
        )

    def __call__(self, x: Tensor) -> Tensor:
        return self.down(self.elementwise.gate(self.gate_up(x), self.activation))
