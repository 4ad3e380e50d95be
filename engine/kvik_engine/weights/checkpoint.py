"""A model's tensors on disk, whatever the format: named as Hugging Face checkpoints do, read one at a time."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from kvik_engine.errors import StartError, StartReason
from kvik_engine.layers.elementwise import BY_TORCH, Elementwise
from kvik_engine.layers.product import MakeProduct, PlainProduct


class Checkpoint(Protocol):
    """An open model file or folder. Heads and tables are checked; no tensor is read before it is asked for."""

    @property
    def config(self) -> Mapping[str, object]:
        """The values of config.json."""
        ...

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Every tensor of the model by name."""
        ...

    def read(self, name: str, into: Tensor) -> None:
        """Fill a CPU tensor of the same shape and any floating dtype."""
        ...


def open_checkpoint(path: Path) -> Checkpoint:
    """Open a GGUF file or a folder of safetensors. Raises StartError (ModelNotFound, ModelInvalid)."""
    if path.is_dir():
        from kvik_engine.weights.safetensors import SafetensorsCheckpoint

        return SafetensorsCheckpoint(path)
    from kvik_engine.weights.gguf import GGUFCheckpoint

    return GGUFCheckpoint(path)


class CheckpointTensors:
    """A layers.tensors.TensorSource over a checkpoint: checks the shape, then reads straight into the model's dtype."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        dtype: torch.dtype,
        device: torch.device,
        product: MakeProduct = PlainProduct,
        elementwise: Elementwise = BY_TORCH,
    ) -> None:
        self._checkpoint = checkpoint
        self.dtype = dtype
        self.device = device
        self.product = product
        self.elementwise = elementwise

    def has(self, name: str) -> bool:
        return name in self._checkpoint.shapes

    def take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        found = self._checkpoint.shapes.get(name)
        if found is None:
            raise StartError(StartReason.MODEL_INVALID, f"the model lacks the tensor {name}")
        if found != shape:
            raise StartError(
                StartReason.MODEL_INVALID, f"the tensor {name} has the shape {list(found)}, expected {list(shape)}"
            )
        tensor = torch.empty(shape, dtype=self.dtype)
        self._checkpoint.read(name, tensor)
        return tensor.to(self.device)
