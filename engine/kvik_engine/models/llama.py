"""The Llama family (Llama, SmolLM2, Mistral): pre-norm decoder, rotary embedding, grouped-query attention, SwiGLU.

Source: Touvron et al., "LLaMA" (arXiv 2302.13971); Grattafiori et al., "The Llama 3 Herd" (arXiv 2407.21783).
"""

from __future__ import annotations

from kvik_engine.attention.backend import StepAttention
from kvik_engine.layers.attention import Attention
from kvik_engine.layers.mlp import GatedMLP
from kvik_engine.layers.norm import RMSNorm
from kvik_engine.layers.residual import Residual
from kvik_engine.layers.rotary import Rotary, RotaryTables
from kvik_engine.layers.tensors import TensorSource
from kvik_engine.models.config import ModelConfig
from kvik_engine.models.decoder import Decoder


class DecoderLayer:
    """Attention, then the feed-forward network, each on the normed residual and added to it."""

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

    def __call__(self, residual: Residual, rotary: RotaryTables, attention: StepAttention) -> None:
        residual.add(self.attention(residual.normed(self.input_norm), rotary, attention))
        residual.add(self.mlp(residual.normed(self.post_norm)))


class Llama(Decoder):
    """See models.registry.Model."""

    def __init__(self, config: ModelConfig, tensors: TensorSource) -> None:
        super().__init__(
            config,
            tensors,
            [DecoderLayer(config, tensors, index) for index in range(config.layers)],
            Rotary.take(tensors, config.head_dim, config.rope_theta, config.rope_scaling),
        )
