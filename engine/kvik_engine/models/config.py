"""The shape of a model. Values only: models.read_config makes it from a config.json."""

from __future__ import annotations

from dataclasses import dataclass

from kvik_engine.layers.rope_scaling import RopeScaling


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowAttention:
    """Some layers see only the last `tokens` tokens, the query's own included."""

    tokens: int
    layers: tuple[int, ...]
    rope_theta: float
    """These layers' own; rope_scaling stretches only the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434): keys and values of all heads come from one vector of
    `kv_rank` a token, and one rotary key of `rope_dim` is shared by all heads. These two are what the cache holds."""

    kv_rank: int
    query_rank: int | None
    """None: queries are projected from the hidden state at once."""
    nope_dim: int
    """Of each head's query and key, the part without position."""
    rope_dim: int
    value_dim: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """A mixture of experts in place of the feed-forward network, from layer `first_layer` on."""

    count: int
    per_token: int
    intermediate_size: int
    """Of one expert."""
    shared: int
    """Experts that every token goes through, besides the routed ones."""
    first_layer: int
    scaling: float
    """Routed experts' weights are multiplied by it."""
    groups: int | None = None
    """Experts are chosen from the best `groups_per_token` of so many groups; None: from all."""
    groups_per_token: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """What the model families need to know to lay out their tensors and their KV cache."""

    architecture: str
    """Key of models.registry."""
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    """Width of a head's query and key."""
    context_length: int
    norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None = None
    tie_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    query_scale: float | None = None
    """What q·k is multiplied by; None: head_dim ** -0.5."""
    sandwich_norms: bool = False
    """Attention and feed-forward network are normed behind as well as before, and queries and keys by head."""
    window: WindowAttention | None = None
    latent: LatentAttention | None = None
    experts: Experts | None = None
