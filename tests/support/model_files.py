"""Writes small model files byte by byte, sound or not: what the bounded readers must survive."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 4,
    "vocab_size": 24,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
}
LLAMA_METADATA: dict[str, Any] = {
    "general.architecture": "llama",
    "llama.embedding_length": 32,
    "llama.feed_forward_length": 64,
    "llama.block_count": 1,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.context_length": 64,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
}


def llama_shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Every tensor of a tied Llama by its Hugging Face name."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    q, kv = (config[key] * config["head_dim"] for key in ("num_attention_heads", "num_key_value_heads"))
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config["vocab_size"], hidden),
        "model.norm.weight": (hidden,),
    }
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}"
        shapes |= {
            f"{prefix}.input_layernorm.weight": (hidden,),
            f"{prefix}.post_attention_layernorm.weight": (hidden,),
            f"{prefix}.self_attn.q_proj.weight": (q, hidden),
            f"{prefix}.self_attn.k_proj.weight": (kv, hidden),
            f"{prefix}.self_attn.v_proj.weight": (kv, hidden),
            f"{prefix}.self_attn.o_proj.weight": (hidden, q),
            f"{prefix}.mlp.gate_proj.weight": (inner, hidden),
            f"{prefix}.mlp.up_proj.weight": (inner, hidden),
            f"{prefix}.mlp.down_proj.weight": (hidden, inner),
        }
    return shapes


def safetensors_bytes(head: object, data: bytes, *, length: int | None = None) -> bytes:
    """`head` is dumped as JSON unless it is bytes; `length` overrides the length of the head that is stated."""
    text = head if isinstance(head, bytes) else json.dumps(head).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def write_safetensors_model(folder: Path, *, config: Mapping[str, Any] = CONFIG) -> None:
    """A sound folder of zeros."""
    (folder / "config.json").write_text(json.dumps(config))
    head: dict[str, Any] = {}
    at = 0
    for name, shape in llama_shapes(config).items():
        size = 4 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        head[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    (folder / "model.safetensors").write_bytes(safetensors_bytes(head, bytes(at)))


@dataclass
class GGUFFile:
    """A GGUF file whose every field can be made wrong."""

    metadata: Mapping[str, Any] = field(default_factory=lambda: dict(LLAMA_METADATA))
    tensors: Sequence[tuple[str, Sequence[int], int, int]] = ()
    """(name, shape fastest first, type, offset)."""
    data: bytes = b""
    magic: bytes = b"GGUF"
    version: int = 3
    tensor_count: int | None = None
    metadata_count: int | None = None
    extra_metadata: bytes = b""
    """Encoded entries behind the others; metadata_count must count them."""

    def encode(self) -> bytes:
        counts = (
            len(self.tensors) if self.tensor_count is None else self.tensor_count,
            len(self.metadata) if self.metadata_count is None else self.metadata_count,
        )
        head = self.magic + struct.pack("<IQQ", self.version, *counts)
        for key, value in self.metadata.items():
            head += string(key) + typed(value)
        head += self.extra_metadata
        for name, shape, kind, offset in self.tensors:
            head += string(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *shape)
            head += struct.pack("<IQ", kind, offset)
        return head + bytes(-len(head) % 32) + self.data


def string(text: str | bytes, *, length: int | None = None) -> bytes:
    """A length and characters; `length` overrides what is stated."""
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw) if length is None else length) + raw


def typed(value: Any) -> bytes:
    """A value behind its type."""
    match value:
        case bool():
            return struct.pack("<I?", 7, value)
        case int():
            return struct.pack("<Iq", 11, value) if not 0 <= value < 1 << 32 else struct.pack("<II", 4, value)
        case float():
            return struct.pack("<If", 6, value)
        case str():
            return struct.pack("<I", 8) + string(value)
        case _:
            raise TypeError(value)
