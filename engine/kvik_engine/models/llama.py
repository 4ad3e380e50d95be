"""The Llama family (Llama, SmolLM2, Mistral): pre-norm decoder, rotary embedding, grouped-query attention, SwiGLU.

Source: Touvron et al., "LLaMA" (arXiv 2302.13971); Grattafiori et al., "The Llama 3 Herd" (arXiv 2407.21783).
"""

from __future__ import annotations

from torch import Tensor

from kvik_engine.attention.backend import StepAttention
from kvik_engine.layers.attention import Attention
from kvik_engine.layers.embedding import Embedding
from kvik_engine.layers.head import LanguageHead
from kvik_engine.layers.mlp import GatedMLP
from kvik_engine.layers.norm import RMSNorm
from kvik_engine.layers.rotary import Rotary, RotaryTables
from kvik_engine.layers.tensors import TensorSource
from kvik_engine.models.config import ModelConfig
from kvik_engine.models.parameters import count_parameters


class DecoderLayer:
    """Attention, then the feed-forward network, each on the normed residual and added to it; the residual is fp32."""

    def __init__(self, config: ModelConfig, tensors: TensorSource, index: int) -> None:
        prefix = f"model.layers.{index}"
        self.input_norm = RMSNorm.take(tensors, f"{prefix}.input_layernorm", config.hidden_size, config.norm_eps)
        self.attention = Attention.take(
            tensors,
            f"{prefix}.self_attn",
            layer=index,
            hidden=config.hidden_size,
            heads=config.heads,
            kv_heads=config.kv_heads,
            head_dim=config.head_dim,
            bias=config.attention_bias,
        )
        self.post_norm = RMSNorm.take(
            tensors, f"{prefix}.post_attention_layernorm", config.hidden_size, config.norm_eps
        )
        self.mlp = GatedMLP.take(
            tensors, f"{prefix}.mlp", config.hidden_size, config.intermediate_size, bias=config.mlp_bias
        )

    def __call__(self, hidden: Tensor, rotary: RotaryTables, attention: StepAttention) -> Tensor:
        hidden = hidden + self.attention(self.input_norm(hidden), rotary, attention)
        return hidden + self.mlp(self.post_norm(hidden))


class Llama:
    """See models.registry.Model."""

    def __init__(self, config: ModelConfig, tensors: TensorSource) -> None:
        self.config = config
        self.embedding = Embedding.take(tensors, "model.embed_tokens", config.vocab_size, config.hidden_size)
        self.layers = [DecoderLayer(config, tensors, index) for index in range(config.layers)]
        self.norm = RMSNorm.take(tensors, "model.norm", config.hidden_size, config.norm_eps)
        self.rotary = Rotary.take(tensors, config.head_dim, config.rope_theta, config.rope_scaling)
        self.head = LanguageHead(
            self.embedding.weight
            if config.tie_embeddings
            else tensors.take("lm_head.weight", (config.vocab_size, config.hidden_size))
        )

    def forward(self, token_ids: Tensor, positions: Tensor, attention: StepAttention) -> Tensor:
        # Sixty sums go through the residual: in bfloat16 their rounding would be a third of all error in the logits.
        hidden = self.embedding(token_ids).float()
        rotary = self.rotary.tables(positions)
        for layer in self.layers:
            hidden = layer(hidden, rotary, attention)
        return self.norm(hidden)

    def logits(self, hidden: Tensor) -> Tensor:
        return self.head(hidden)

    @property
    def parameters(self) -> int:
        return count_parameters(self.config).total
