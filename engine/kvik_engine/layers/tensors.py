"""Where layers get their tensors from, a checkpoint or seeded random numbers, and how they compute with them."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from kvik_engine.layers.elementwise import Elementwise
from kvik_engine.layers.product import MakeProduct


class TensorSource(Protocol):
    """Gives each named tensor once, already in the model's dtype and on its device.

    Names are those of Hugging Face checkpoints whatever the file format.
    """

    dtype: torch.dtype
    device: torch.device
    product: MakeProduct
    """How weights of this dtype are multiplied by on this device. The weight belongs to the product then."""
    elementwise: Elementwise
    """How the work between products is done on this device."""

    def has(self, name: str) -> bool: ...

    def take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Raises StartError (ModelInvalid) when the tensor is missing or has another shape."""
        ...


def take_stacked(tensors: TensorSource, parts: list[tuple[str, tuple[int, ...]]]) -> Tensor:
    """Tensors stacked along their first dimension, one in memory at a time besides the result."""
    rows = sum(shape[0] for _, shape in parts)
    stacked = torch.empty((rows, *parts[0][1][1:]), dtype=tensors.dtype, device=tensors.device)
    at = 0
    for name, shape in parts:
        stacked[at : at + shape[0]] = tensors.take(name, shape)
        at += shape[0]
    return stacked
