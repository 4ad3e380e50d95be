"""y = x W^T + b."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from kvik_engine.layers.tensors import TensorSource, take_stacked


class Linear:
    """Weight [out, in], bias [out] or None. Several projections of one input are stacked into one matrix."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.weight = weight
        self.bias = bias

    @classmethod
    def take(cls, tensors: TensorSource, name: str, rows: int, columns: int, *, bias: bool = False) -> Linear:
        return cls.take_stacked(tensors, [(name, rows)], columns, bias=bias)

    @classmethod
    def take_stacked(
        cls, tensors: TensorSource, parts: list[tuple[str, int]], columns: int, *, bias: bool = False
    ) -> Linear:
        """`parts` are (name, rows) of projections of the same input, in the order of their outputs."""
        weight = take_stacked(tensors, [(f"{name}.weight", (rows, columns)) for name, rows in parts])
        return cls(weight, take_stacked(tensors, [(f"{name}.bias", (rows,)) for name, rows in parts]) if bias else None)

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)
