"""Root mean square norm (Zhang and Sennrich, arXiv 1910.07467)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from kvik_engine.layers.tensors import TensorSource


class RMSNorm:
    """x / sqrt(mean(x^2) + eps) * weight, over the last dimension: fp32 in, `dtype` out."""

    def __init__(self, weight: Tensor, eps: float, dtype: torch.dtype) -> None:
        self.weight = weight.float()
        self.eps = eps
        self.dtype = dtype
        self._shape = (weight.shape[0],)

    @classmethod
    def take(cls, tensors: TensorSource, name: str, width: int, eps: float, *, above_one: bool = False) -> RMSNorm:
        """`above_one`: the checkpoint holds weight - 1 (Gemma)."""
        weight = tensors.take(f"{name}.weight", (width,))
        return cls(1.0 + weight.float() if above_one else weight, eps, tensors.dtype)

    def __call__(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self._shape, self.weight, self.eps).to(self.dtype)
