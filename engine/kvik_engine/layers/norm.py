"""Root mean square norm (Zhang and Sennrich, arXiv 1910.07467)."""

from __future__ import annotations

import torch
from torch import Tensor

from kvik_engine.layers.elementwise import BY_TORCH, Elementwise
from kvik_engine.layers.tensors import TensorSource


class RMSNorm:
    """x / sqrt(mean(x^2) + eps) * weight, over the last dimension: fp32 in, `dtype` out."""

    def __init__(self, weight: Tensor, eps: float, dtype: torch.dtype, elementwise: Elementwise = BY_TORCH) -> None:
        self.weight = weight.float()
        self.eps = eps
        self.dtype = dtype
        self.elementwise = elementwise

    @classmethod
    def take(cls, tensors: TensorSource, name: str, width: int, eps: float, *, above_one: bool = False) -> RMSNorm:
        """`above_one`: the checkpoint holds weight - 1 (Gemma)."""
        weight = tensors.take(f"{name}.weight", (width,))
        return cls(1.0 + weight.float() if above_one else weight, eps, tensors.dtype, tensors.elementwise)

    def __call__(self, x: Tensor) -> Tensor:
        return self.elementwise.rms_norm(x, self.weight, self.eps, self.dtype)

    def of_sum(self, x: Tensor, addend: Tensor) -> Tensor:
        """[rows, width] each: adds to x in place, then norms it."""
        return self.elementwise.add_rms_norm(x, addend, self.weight, self.eps, self.dtype)
