"""y = x W^T + b."""

from __future__ import annotations

from torch import Tensor

from kvik_engine.layers.product import Product
from kvik_engine.layers.tensors import TensorSource, take_stacked


class Linear:
    """The product with a weight [out, in], and a bias [out] or None. Several projections of one input are stacked into
    one weight."""

    def __init__(self, product: Product, bias: Tensor | None = None) -> None:
        self.product = product
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
        biases = take_stacked(tensors, [(f"{name}.bias", (rows,)) for name, rows in parts]) if bias else None
        return cls(tensors.product(weight), biases)

    def __call__(self, x: Tensor) -> Tensor:
        return self.product(x, self.bias)
