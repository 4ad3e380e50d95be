"""The Gemma-3 family, text only: window and full layers in turn, norms on both sides, GeGLU.

Source: "Gemma 3 Technical Report" (arXiv 2503.19786). Window layers have rotary frequencies of their own. Checkpoints
hold norm weights as differences from one, and the embedding is scaled by sqrt(hidden).
"""

from __future__ import annotations

import torch
from torch import Tensor

from kvik_engine.attention.backend import StepAttention
from kvik_engine.layers.attention import Attention
from kvik_engine.layers.mlp import GatedMLP
from kvik_engine.layers.norm import RMSNorm
from kvik_engine.layers.residual import Residual
from kvik_engine.layers.rotary import Rotary, RotaryTables
from kvik_engine.layers.tensors import TensorSource
from kvik_engine.models.config import ModelConfig
from kvik_engine.models.decoder import Decoder
from kvik_kernels.activation import Activation


class DecoderLayer:
    """Attention, then the feed-forward network, each normed before and behind and added to the residual."""

    def __init__(self, config: ModelConfig, tensors: TensorSource, index: int) -> None:
        prefix = f"model.layers.{index}"
        hidden = config.hidden_size

        def norm(name: str, width: int) -> RMSNorm:
            return RMSNorm.take(tensors, f"{prefix}.{name}", width, config.norm_eps, above_one=True)

        self.before_attention = norm("input_layernorm", hidden)
        self.behind_attention = norm("post_attention_layernorm", hidden)
        self.before_mlp = norm("pre_feedforward_layernorm", hidden)
        self.behind_mlp = norm("post_feedforward_layernorm", hidden)
        self.attention = Attention.take(
            tensors,
            f"{prefix}.self_attn",
            layer=index,
            hidden=hidden,
            heads=config.heads,
            kv_heads=config.kv_heads,
            head_dim=config.head_dim,
            bias=config.attention_bias,
            norms=(norm("self_attn.q_norm", config.head_dim), norm("self_attn.k_norm", config.head_dim)),
            scale=config.query_scale,
        )
        self.mlp = GatedMLP.take(
            tensors, f"{prefix}.mlp", hidden, config.intermediate_size, bias=False, activation=Activation.GELU_TANH
        )

    def __call__(self, residual: Residual, rotary: RotaryTables, attention: StepAttention) -> None:
        attended = self.attention(residual.normed(self.before_attention), rotary, attention)
        residual.add(self.behind_attention(attended.float()))
        computed = self.mlp(residual.normed(self.before_mlp))
        residual.add(self.behind_mlp(computed.float()))


class Gemma3(Decoder):
    """See models.registry.Model. `rotary` is that of the full layers."""

    def __init__(self, config: ModelConfig, tensors: TensorSource) -> None:
        super().__init__(
            config,
            tensors,
            [DecoderLayer(config, tensors, index) for index in range(config.layers)],
            Rotary.take(tensors, config.head_dim, config.rope_theta, config.rope_scaling),
            norm_above_one=True,
        )
        # The model was trained with the scale in its own dtype.
        self.embedding_scale = torch.tensor(config.hidden_size**0.5, dtype=tensors.dtype).item()
        window = config.window
        self.window_layers = frozenset(() if window is None else window.layers)
        theta = config.rope_theta if window is None else window.rope_theta
        self.window_rotary = Rotary.take(tensors, config.head_dim, theta, None)

    def forward(self, token_ids: Tensor, positions: Tensor, attention: StepAttention) -> Tensor:
        residual = Residual(self.embedding(token_ids).float() * self.embedding_scale)
        full, window = self.rotary.tables(positions), self.window_rotary.tables(positions)
        for index, layer in enumerate(self.layers):
            layer(residual, window if index in self.window_layers else full, attention)
        return residual.normed(self.norm)
