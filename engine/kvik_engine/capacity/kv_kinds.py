"""KV bytes per token of the four kinds of attention, for a model of the same layers, heads and head width.

Arithmetic to compare by. What the engine allocates for a model is what models.kv_groups and kv.sizing say.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvik_engine.models.config import ModelConfig

ELEMENT_BYTES = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int8": 1.0, "int4": 0.5}
"""By KV dtype; scales of quantised caches are not counted."""


@dataclass(frozen=True, slots=True)
class KVKind:
    """`width` is numbers per token and layer: keys and values, or a latent and its rotary key."""

    name: str
    note: str
    width: int
    own: bool
    """Whether it is the model's."""

    def bytes_per_token(self, layers: int, dtype: str) -> float:
        return layers * self.width * ELEMENT_BYTES[dtype]


def kv_kinds(config: ModelConfig) -> tuple[KVKind, ...]:
    """MHA, GQA, MQA and MLA.

    GQA has the model's own KV heads, or 8 where its attention is of another kind. MLA has the model's own latent, or
    one of 4 head widths with a rotary key of half of one (DeepSeek-V2, arXiv 2405.04434, section 2.1.4).
    """
    heads, own, latent = config.heads, own_kind(config), config.latent
    width = config.head_dim if latent is None else latent.value_dim
    grouped = config.kv_heads if own == "GQA" else min(8, heads)
    rank, rope = (4 * width, width // 2) if latent is None else (latent.kv_rank, latent.rope_dim)
    return (
        KVKind("MHA", f"{heads} KV heads", 2 * heads * width, own == "MHA"),
        KVKind("GQA", f"{grouped} KV heads", 2 * grouped * width, own == "GQA"),
        KVKind("MQA", "1 KV head", 2 * width, own == "MQA"),
        KVKind("MLA", f"latent {rank} + {rope}", rank + rope, own == "MLA"),
    )


def own_kind(config: ModelConfig) -> str:
    """The model's kind of attention."""
    if config.latent is not None:
        return "MLA"
    if config.kv_heads == config.heads:
        return "MHA"
    return "MQA" if config.kv_heads == 1 else "GQA"
