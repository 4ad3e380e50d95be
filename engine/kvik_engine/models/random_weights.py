"""Seeded random weights in place of a checkpoint: the same tensors on every machine, without any file."""

from __future__ import annotations

import zlib

import torch
from torch import Tensor

from kvik_engine.layers.elementwise import BY_TORCH, Elementwise
from kvik_engine.layers.product import MakeProduct, PlainProduct


class RandomTensors:
    """A TensorSource: each tensor depends on the seed and its own name only, drawn on the CPU in fp32.

    Matrices are normal with a deviation of 1/sqrt(inputs), norms are ones, so that activations stay near unit size.
    """

    def __init__(
        self,
        seed: int,
        *,
        dtype: torch.dtype,
        device: torch.device,
        product: MakeProduct = PlainProduct,
        elementwise: Elementwise = BY_TORCH,
    ) -> None:
        self._seed = seed
        self.dtype = dtype
        self.device = device
        self.product = product
        self.elementwise = elementwise

    def has(self, name: str) -> bool:
        return name != "rope_freqs.weight"

    def take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        if len(shape) == 1:
            return torch.ones(shape, dtype=self.dtype, device=self.device)
        generator = torch.Generator().manual_seed(self._seed ^ zlib.crc32(name.encode()))
        values = torch.randn(shape, generator=generator).mul_(shape[-1] ** -0.5)
        return values.to(self.device, self.dtype)
