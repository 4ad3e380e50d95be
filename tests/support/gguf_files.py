"""Small GGUF files, sound and damaged, written by hand: no library that would refuse to write nonsense."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from kvik_engine.text.token_bytes import byte_alphabet

_UINT32, _FLOAT32, _BOOL, _STRING, _ARRAY, _INT32 = 4, 6, 7, 8, 9, 5


def string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def value(item: Any) -> bytes:
    """A typed value: bool, int, float, str or a list of one of them."""
    if isinstance(item, bool):
        return struct.pack("<I?", _BOOL, item)
    if isinstance(item, int):
        return struct.pack("<II", _UINT32, item)
    if isinstance(item, float):
        return struct.pack("<If", _FLOAT32, item)
    if isinstance(item, str):
        return struct.pack("<I", _STRING) + string(item)
    kind, code = {str: (_STRING, ""), float: (_FLOAT32, "f"), int: (_INT32, "i")}[type(item[0])]
    items = b"".join(string(i) if kind == _STRING else struct.pack("<" + code, i) for i in item)
    return struct.pack("<IIQ", _ARRAY, kind, len(item)) + items


def gguf(metadata: dict[str, Any], tensors: Sequence[tuple[str, tuple[int, ...]]] = (), data: bytes = b"") -> bytes:
    """A whole file; tensors are F32 and all begin at 0."""
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(metadata))
    head += b"".join(string(key) + value(item) for key, item in metadata.items())
    for name, shape in tensors:
        head += string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, 0, 0)
    return head + bytes(-len(head) % 32) + data


def tiny_gguf(metadata: dict[str, Any]) -> bytes:
    """A file whose embedding has a row for each token; the rows are missing, the head is whole."""
    return gguf(metadata, [("token_embd.weight", (64, len(metadata["tokenizer.ggml.tokens"])))])


def byte_level_metadata(**more: Any) -> dict[str, Any]:
    """A tiny llama with a token a byte and ChatML's two special tokens."""
    tokens = [*byte_alphabet(), "<|im_start|>", "<|im_end|>", "Ġa"]
    return {
        "general.architecture": "llama",
        "llama.embedding_length": 64,
        "llama.block_count": 2,
        "llama.feed_forward_length": 128,
        "llama.attention.head_count": 4,
        "llama.attention.head_count_kv": 2,
        "llama.context_length": 256,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * 256 + [3, 3, 1],
        "tokenizer.ggml.merges": ["Ġ a"],
        "tokenizer.ggml.eos_token_id": 257,
        **more,
    }
