"""Products with one weight: the ways to hold the weight and to multiply by it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from kvik_kernels.cpu.int8_product import Int8Weight
from kvik_kernels.cpu.library import Library
from kvik_kernels.cpu.product import PanelWeight


class Product(Protocol):
    """A weight W [out, in], kept once, as the implementation needs it."""

    def __call__(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """[..., in] -> x W^T + bias [..., out] in the dtype of W."""
        ...

    def unrounded(self, x: Tensor) -> Tensor:
        """[rows, in] -> x W^T in fp32 [rows, out], not rounded to the dtype of W."""
        ...


MakeProduct = Callable[[Tensor], Product]
"""From a weight [out, in], which belongs to the product from then on."""


class PlainProduct:
    """torch's own, on the weight as it is."""

    def __init__(self, weight: Tensor) -> None:
        self.weight = weight

    def __call__(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        return F.linear(x, self.weight, bias)

    def unrounded(self, x: Tensor) -> Tensor:
        if self.weight.dtype == torch.float32:
            return F.linear(x, self.weight)
        if x.device.type != "cpu":
            return torch.mm(x, self.weight.t(), out_dtype=torch.float32)
        rounded = F.linear(x, self.weight)
        return _whole(rounded, torch.addmm(rounded, x, self.weight.t(), beta=-1))


class PackedProduct:
    """oneDNN's, for CPUs and bf16, on a copy of the weight in the blocked layout of its kernels."""

    def __init__(self, weight: Tensor) -> None:
        # Nothing is promised of weights that are views with strides of their own.
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous())

    def __call__(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        product: Tensor = torch.ops.mkldnn._linear_pointwise.default(x, self._packed, bias, "none", [], "")
        return product

    def unrounded(self, x: Tensor) -> Tensor:
        rounded = self(x)
        return _whole(rounded, torch.ops.mkldnn._linear_pointwise.binary(x, rounded, self._packed, None, "sub"))


class PanelProduct:
    """Our own kernels', for CPUs, on a copy of the weight in their order. One thread at a time may use it."""

    def __init__(self, weight: PanelWeight | Int8Weight) -> None:
        self._weight = weight

    @classmethod
    def whole(cls, library: Library, weight: Tensor) -> PanelProduct:
        """Of a weight in bf16."""
        return cls(PanelWeight(library, weight))

    @classmethod
    def int8(cls, library: Library, weight: Tensor) -> PanelProduct:
        """Of a weight in bf16 or fp32, rounded to int8."""
        return cls(Int8Weight(library, weight))

    def __call__(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        return self._multiply(x, bias, x.dtype)

    def unrounded(self, x: Tensor) -> Tensor:
        return self._multiply(x, None, torch.float32)

    def _multiply(self, x: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
        rows = x.reshape(-1, self._weight.inputs)
        if rows.stride(1) != 1:
            rows = rows.contiguous()
        product = self._weight.multiply(rows, bias, dtype=dtype, threads=torch.get_num_threads())
        return product.view(*x.shape[:-1], self._weight.outputs)


def _whole(rounded: Tensor, lost: Tensor) -> Tensor:
    """CPU products have no wider output. A second pass subtracts the rounded product before it rounds, so that it
    yields what the first one lost; an fp32 copy of the weight would cost more time in company, and its memory."""
    return rounded.float().add_(lost)
