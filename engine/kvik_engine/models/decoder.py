"""What the families share: embedding, decoder layers, a last norm and the head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from kvik_engine.attention.backend import StepAttention
from kvik_engine.layers.embedding import Embedding
from kvik_engine.layers.head import LanguageHead
from kvik_engine.layers.norm import RMSNorm
from kvik_engine.layers.product import PlainProduct, Product
from kvik_engine.layers.residual import Residual
from kvik_engine.layers.rotary import Rotary, RotaryTables
from kvik_engine.layers.tensors import TensorSource
from kvik_engine.models.config import ModelConfig
from kvik_engine.models.parameters import count_parameters

TWICE_BYTES = 128 << 20
"""A tied weight up to this size may be there twice, packed for the head and as it is for lookups. The head of a large
vocabulary would take over a gigabyte more, which no plan of the memory expects."""


class Layer(Protocol):
    """One decoder layer."""

    def __call__(self, residual: Residual, rotary: RotaryTables, attention: StepAttention) -> None:
        """Adds to the residual."""
        ...


class Decoder:
    """See models.registry.Model. Families whose layers do not all rotate alike have a `forward` of their own."""

    def __init__(
        self,
        config: ModelConfig,
        tensors: TensorSource,
        layers: Sequence[Layer],
        rotary: Rotary,
        *,
        norm_above_one: bool = False,
    ) -> None:
        self.config = config
        self.embedding = Embedding.take(tensors, "model.embed_tokens", config.vocab_size, config.hidden_size)
        self.layers = layers
        self.rotary = rotary
        self.norm = RMSNorm.take(tensors, "model.norm", config.hidden_size, config.norm_eps, above_one=norm_above_one)
        self.head = LanguageHead(
            self._tied_product(tensors)
            if config.tie_embeddings
            else tensors.product(tensors.take("lm_head.weight", (config.vocab_size, config.hidden_size)))
        )

    def _tied_product(self, tensors: TensorSource) -> Product:
        weight = self.embedding.weight
        return tensors.product(weight) if weight.nbytes <= TWICE_BYTES else PlainProduct(weight)

    def forward(self, token_ids: Tensor, positions: Tensor, attention: StepAttention) -> Tensor:
        residual = Residual(self.embedding(token_ids).float())
        rotary = self.rotary.tables(positions)
        for layer in self.layers:
            layer(residual, rotary, attention)
        return residual.normed(self.norm)

    def logits(self, hidden: Tensor) -> Tensor:
        return self.head(hidden)

    @property
    def parameters(self) -> int:
        return count_parameters(self.config).total
