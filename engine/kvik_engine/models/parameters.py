"""How many parameters a model has, from its configuration alone. Pure: `kvik plan` needs no torch."""

from __future__ import annotations

from dataclasses import dataclass

from kvik_engine.models.config import ModelConfig


@dataclass(frozen=True, slots=True)
class ParameterCount:
    """Parameters of a model."""

    total: int
    per_token: int
    """Those that one decoded token goes through: no expert that is not chosen, no embedding of other tokens."""


def count_parameters(config: ModelConfig) -> ParameterCount:
    """Every tensor of the checkpoint, buffers aside."""
    norms = 4 if config.sandwich_norms else 2
    layer = _attention(config) + norms * config.hidden_size
    dense = _mlp(config, config.intermediate_size)
    experts = config.experts
    embedding = config.vocab_size * config.hidden_size
    # The head's matrix is read whole for each token, an embedding of its own by one row.
    per_token = config.layers * layer + config.hidden_size + embedding
    total = per_token if config.tie_embeddings else per_token + embedding
    if experts is None:
        return ParameterCount(total + config.layers * dense, per_token + config.layers * dense)
    sparse = config.layers - experts.first_layer
    routed = 3 * config.hidden_size * experts.intermediate_size
    rest = experts.first_layer * dense + sparse * (
        _mlp(config, experts.shared * experts.intermediate_size) + experts.count * config.hidden_size
    )
    return ParameterCount(
        total + rest + sparse * experts.count * routed, per_token + rest + sparse * experts.per_token * routed
    )


def _attention(config: ModelConfig) -> int:
    if config.latent is not None:
        return _latent_attention(config)
    weights = config.hidden_size * config.head_dim * 2 * (config.heads + config.kv_heads)
    biases = config.head_dim * (config.heads + 2 * config.kv_heads) + config.hidden_size
    norms = 2 * config.head_dim if config.sandwich_norms else 0
    return weights + norms + (biases if config.attention_bias else 0)


def _latent_attention(config: ModelConfig) -> int:
    latent = config.latent
    assert latent is not None
    queries = config.heads * config.head_dim
    down = latent.kv_rank + latent.rope_dim
    weights = config.hidden_size * (down + config.heads * latent.value_dim) + latent.kv_rank
    weights += latent.kv_rank * config.heads * (latent.nope_dim + latent.value_dim)
    biases = down + config.hidden_size
    if latent.query_rank is None:
        weights += config.hidden_size * queries
    else:
        weights += config.hidden_size * latent.query_rank + latent.query_rank + latent.query_rank * queries
        biases += latent.query_rank
    return weights + (biases if config.attention_bias else 0)


def _mlp(config: ModelConfig, intermediate: int) -> int:
    biases = 2 * intermediate + config.hidden_size if config.mlp_bias else 0
    return 3 * config.hidden_size * intermediate + (biases if intermediate else 0)
