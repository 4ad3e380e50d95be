"""Token ids to vectors."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from kvik_engine.layers.tensors import TensorSource


class Embedding:
    """Weight [vocabulary, hidden]."""

    def __init__(self, weight: Tensor) -> None:
        self.weight = weight

    @classmethod
    def take(cls, tensors: TensorSource, name: str, vocabulary: int, hidden: int) -> Embedding:
        return cls(tensors.take(f"{name}.weight", (vocabulary, hidden)))

    def __call__(self, token_ids: Tensor) -> Tensor:
        return F.embedding(token_ids, self.weight)
