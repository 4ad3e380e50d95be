"""A GGUF's metadata as Hugging Face's config.json, so that one reader (models.config) checks both formats."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvik_engine.errors import StartError, StartReason
from kvik_engine.weights.gguf_header import GGUFHeader


def config_from_gguf(header: GGUFHeader) -> dict[str, Any]:
    """Describe the model as its original config.json would.

    StartError: ModelUnsupported for another architecture, ModelInvalid when a value is missing or impossible.
    """
    architecture = header.metadata.get("general.architecture")
    make = _ARCHITECTURES.get(architecture) if isinstance(architecture, str) else None
    if make is None:
        raise StartError(
            StartReason.MODEL_UNSUPPORTED,
            f"the GGUF architecture {_shown(architecture)} is not known ({', '.join(sorted(_ARCHITECTURES))})",
        )
    return make(header)


def _llama(header: GGUFHeader) -> dict[str, Any]:
    get = _Values(header.metadata, "llama.")
    heads = get.count("attention.head_count")
    hidden = get.count("embedding_length")
    shapes = {t.name: t.shape for t in header.tensors}
    _refuse_unsupported(header.metadata, get.count("attention.key_length", max(1, hidden // heads)))
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": get.count("feed_forward_length"),
        "num_hidden_layers": get.count("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": get.count("attention.head_count_kv", heads),
        "head_dim": get.count("attention.key_length", max(1, hidden // heads)),
        "max_position_embeddings": get.count("context_length"),
        "rms_norm_eps": get.number("attention.layer_norm_rms_epsilon"),
        "rope_theta": get.number("rope.freq_base", 10000.0),
        "tie_word_embeddings": "output.weight" not in shapes,
        # One of them is enough: then a model without the others is incomplete, and refused when it is loaded.
        "attention_bias": any(".attn_" in name and name.endswith(".bias") for name in shapes),
        "mlp_bias": any(".ffn_" in name and name.endswith(".bias") for name in shapes),
        "rope_scaling": _rope_scaling(header.metadata),
        # The embedding may be padded beyond the tokenizer's tokens.
        "vocab_size": shapes.get("token_embd.weight", (0, 0))[-1],
        "bos_token_id": header.metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": _end_tokens(header.metadata),
    }


_ARCHITECTURES: dict[str, Callable[[GGUFHeader], dict[str, Any]]] = {"llama": _llama}


def _refuse_unsupported(metadata: dict[str, Any], head_dim: int) -> None:
    """StartError (ModelUnsupported) for what changes the model's answers and is not computed here."""
    wrong = {
        "mixture of experts": metadata.get("llama.expert_count") not in (None, 0),
        # Its parameters mean other things there than in config.json.
        "the rope scaling yarn": metadata.get("llama.rope.scaling.type") == "yarn",
        "a sliding window": metadata.get("llama.attention.sliding_window") not in (None, 0),
        "rotary embedding of a part of each head": metadata.get("llama.rope.dimension_count", head_dim) != head_dim,
        "values of another width than keys": metadata.get("llama.attention.value_length", head_dim) != head_dim,
    }
    for feature, found in wrong.items():
        if found:
            raise StartError(StartReason.MODEL_UNSUPPORTED, f"the GGUF file asks for {feature}")


def _rope_scaling(metadata: dict[str, Any]) -> dict[str, Any] | None:
    kind = metadata.get("llama.rope.scaling.type", "none")
    if kind == "none":
        return None
    return {"rope_type": kind, "factor": metadata.get("llama.rope.scaling.factor")}


def _end_tokens(metadata: dict[str, Any]) -> list[int]:
    names = ("eos", "eot", "eom")
    ids = [metadata.get(f"tokenizer.ggml.{name}_token_id") for name in names]
    return list(dict.fromkeys(i for i in ids if type(i) is int))


def _shown(value: object) -> str:
    """A value of the file as messages show it: as long as the file makes it, it would fill the log."""
    return repr(value)[:80]


class _Values:
    """Typed reading of metadata below a prefix."""

    def __init__(self, metadata: dict[str, Any], prefix: str) -> None:
        self._metadata = metadata
        self._prefix = prefix

    def count(self, key: str, default: int | None = None) -> int:
        """A positive integer below 2**31."""
        value = self._metadata.get(self._prefix + key, default)
        if type(value) is not int or not 0 < value < 1 << 31:
            raise StartError(
                StartReason.MODEL_INVALID, f"{self._prefix}{key} is {_shown(value)}, not a positive integer"
            )
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A positive number."""
        value = self._metadata.get(self._prefix + key, default)
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value < 1e12:
            raise StartError(
                StartReason.MODEL_INVALID, f"{self._prefix}{key} is {_shown(value)}, not a positive number"
            )
        return float(value)
