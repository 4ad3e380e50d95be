"""The DeepSeek-V2 family: latent attention, and a mixture of experts in all but the first layers.

Source: "DeepSeek-V2" (arXiv 2405.04434).
"""

from __future__ import annotations

from kvik_engine.attention.backend import StepAttention
from kvik_engine.layers.latent_attention import LatentAttention
from kvik_engine.layers.mlp import GatedMLP
from kvik_engine.layers.moe import MixtureOfExperts
from kvik_engine.layers.norm import RMSNorm
from kvik_engine.layers.residual import Residual
from kvik_engine.layers.rotary import Rotary, RotaryTables
from kvik_engine.layers.tensors import TensorSource
from kvik_engine.models.config import ModelConfig
from kvik_engine.models.decoder import Decoder


class DecoderLayer:
    """Attention, then a network or experts, each on the normed residual and added to it."""

    def __init__(self, config: ModelConfig, tensors: TensorSource, index: int) -> None:
        prefix = f"model.layers.{index}"
        latent = config.latent
        assert latent is not None, "from_hf reads one for this architecture"
        assert config.query_scale is not None
        self.input_norm = RMSNorm.take(tensors, f"{prefix}.input_layernorm", config.hidden_size, config.norm_eps)
        self.attention = LatentAttention.take(
            tensors,
            f"{prefix}.self_attn",
            layer=index,
            hidden=config.hidden_size,
            heads=config.heads,
            kv_rank=latent.kv_rank,
            query_rank=latent.query_rank,
            nope_dim=latent.nope_dim,
            rope_dim=latent.rope_dim,
            value_dim=latent.value_dim,
            scale=config.query_scale,
            bias=config.attention_bias,
        )
        self.post_norm = RMSNorm.take(
            tensors, f"{prefix}.post_attention_layernorm", config.hidden_size, config.norm_eps
        )
        self.mlp = _network(config, tensors, f"{prefix}.mlp", index)

    def __call__(self, residual: Residual, rotary: RotaryTables, attention: StepAttention) -> None:
        residual.add(self.attention(residual.normed(self.input_norm), rotary, attention))
        residual.add(self.mlp(residual.normed(self.post_norm)))


def _network(config: ModelConfig, tensors: TensorSource, name: str, index: int) -> GatedMLP | MixtureOfExperts:
    experts = config.experts
    if experts is None or index < experts.first_layer:
        return GatedMLP.take(tensors, name, config.hidden_size, config.intermediate_size, bias=config.mlp_bias)
    return MixtureOfExperts.take(
        tensors,
        name,
        hidden=config.hidden_size,
        intermediate=experts.intermediate_size,
        count=experts.count,
        shared=experts.shared,
        per_token=experts.per_token,
        scaling=experts.scaling,
        groups=experts.groups,
        groups_per_token=experts.groups_per_token,
        bias=config.mlp_bias,
    )


class DeepSeek2(Decoder):
    """See models.registry.Model."""

    def __init__(self, config: ModelConfig, tensors: TensorSource) -> None:
        assert config.latent is not None
        super().__init__(
            config,
            tensors,
            [DecoderLayer(config, tensors, index) for index in range(config.layers)],
            Rotary.take(tensors, config.latent.rope_dim, config.rope_theta, config.rope_scaling),
        )
