"""Feed-forward network with a gate (SwiGLU, arXiv 2002.05202)."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from kvik_engine.layers.linear import Linear
from kvik_engine.layers.tensors import TensorSource


class GatedMLP:
    """down(silu(gate(x)) * up(x)); gate and up are one matrix."""

    def __init__(self, gate_up: Linear, down: Linear) -> None:
        self.gate_up = gate_up
        self.down = down

    @classmethod
    def take(cls, tensors: TensorSource, name: str, hidden: int, intermediate: int, *, bias: bool) -> GatedMLP:
        parts = [(f"{name}.gate_proj", intermediate), (f"{name}.up_proj", intermediate)]
        return cls(
            Linear.take_stacked(tensors, parts, hidden, bias=bias),
            Linear.take(tensors, f"{name}.down_proj", hidden, intermediate, bias=bias),
        )

    def __call__(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(F.silu(gate).mul_(up))
