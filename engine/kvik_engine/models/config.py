"""The shape of a model, read from the values of config.json (weights.gguf_config writes a GGUF's metadata that way).

Values only: no torch, no code. Everything in these files is somebody else's input: a value of the wrong type or size is
ModelInvalid, a feature that this engine does not compute is ModelUnsupported.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kvik_engine.errors import StartError, StartReason
from kvik_engine.layers.rope_scaling import LinearScaling, Llama3Scaling, RopeScaling

MAX_WIDTH = 1 << 20
"""No width, count or length of a model that this engine can hold comes near it, except the context and vocabulary."""
MAX_LENGTH = 1 << 28


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """What the Llama family needs to know to lay out its tensors."""

    architecture: str
    """Key of models.registry."""
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    context_length: int
    norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None = None
    tie_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False


class Fields:
    """Typed, bounded access to somebody else's mapping."""

    def __init__(self, values: Mapping[str, object], origin: str) -> None:
        self._values = values
        self._origin = origin

    def has(self, key: str) -> bool:
        return self._values.get(key) is not None

    def integer(self, key: str, *, default: int | None = None, at_most: int = MAX_WIDTH) -> int:
        value = self._values.get(key)
        if value is None:
            value = default
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= at_most:
            raise self.invalid(key, f"a whole number from 1 to {at_most}")
        return value

    def number(self, key: str, *, default: float | None = None) -> float:
        value = self._values.get(key)
        if value is None:
            value = default
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < 1e12:
            raise self.invalid(key, "a positive number")
        return float(value)

    def flag(self, key: str, *, default: bool) -> bool:
        value = self._values.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.invalid(key, "true or false")
        return value

    def text(self, key: str, *, default: str | None = None) -> str:
        value = self._values.get(key)
        if value is None:
            value = default
        if not isinstance(value, str):
            raise self.invalid(key, "a text")
        return value

    def mapping(self, key: str) -> Fields | None:
        value = self._values.get(key)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self.invalid(key, "an object")
        return Fields(value, f"{self._origin}: {key}")

    def invalid(self, key: str, expected: str) -> StartError:
        found = repr(self._values.get(key))[:80]
        return StartError(StartReason.MODEL_INVALID, f"{self._origin}: {key} must be {expected}, found {found}")


def from_hf(values: Mapping[str, object], origin: str = "config.json") -> ModelConfig:
    """The config of a Hugging Face model directory.

    Raises StartError (ModelInvalid, ModelUnsupported).
    """
    fields = Fields(values, origin)
    hidden = fields.integer("hidden_size")
    heads = fields.integer("num_attention_heads")
    activation = fields.text("hidden_act", default="silu")
    if activation not in ("silu", "swish"):
        raise _unsupported(origin, f"the activation {activation!r}")
    if fields.has("quantization_config"):
        raise _unsupported(origin, "quantized safetensors weights")
    rope = fields.mapping("rope_parameters") or fields.mapping("rope_scaling")
    theta = fields.number("rope_theta", default=rope.number("rope_theta", default=10000.0) if rope else 10000.0)
    context = fields.integer("max_position_embeddings", at_most=MAX_LENGTH)
    if fields.has("sliding_window"):
        # Within one window a sliding window hides nothing: serve that far and no further.
        context = min(context, fields.integer("sliding_window", at_most=MAX_LENGTH))
    return _checked(
        ModelConfig(
            architecture=_hf_architecture(values, origin),
            vocab_size=fields.integer("vocab_size", at_most=MAX_LENGTH),
            hidden_size=hidden,
            intermediate_size=fields.integer("intermediate_size"),
            layers=fields.integer("num_hidden_layers", at_most=4096),
            heads=heads,
            kv_heads=fields.integer("num_key_value_heads", default=heads),
            head_dim=fields.integer("head_dim", default=max(1, hidden // heads)),
            context_length=context,
            norm_eps=fields.number("rms_norm_eps", default=1e-6),
            rope_theta=theta,
            rope_scaling=_hf_scaling(rope, context),
            tie_embeddings=fields.flag("tie_word_embeddings", default=False),
            attention_bias=fields.flag("attention_bias", default=False),
            mlp_bias=fields.flag("mlp_bias", default=False),
        ),
        origin,
    )


def _hf_architecture(values: Mapping[str, object], origin: str) -> str:
    architectures = values.get("architectures")
    if not isinstance(architectures, list) or len(architectures) != 1 or not isinstance(architectures[0], str):
        raise StartError(StartReason.MODEL_INVALID, f"{origin}: architectures must be a list of one name")
    return architectures[0]


def _hf_scaling(rope: Fields | None, context: int) -> RopeScaling | None:
    if rope is None:
        return None
    kind = rope.text("rope_type", default=rope.text("type", default="default"))
    if kind == "default":
        return None
    if kind == "linear":
        return LinearScaling(rope.number("factor"))
    if kind == "llama3":
        low, high = rope.number("low_freq_factor"), rope.number("high_freq_factor")
        if low >= high:
            raise rope.invalid("high_freq_factor", f"more than low_freq_factor {low}")
        return Llama3Scaling(
            factor=rope.number("factor"),
            low_freq_factor=low,
            high_freq_factor=high,
            original_context=rope.integer("original_max_position_embeddings", default=context, at_most=MAX_LENGTH),
        )
    raise _unsupported("config.json", f"rope scaling {kind!r}")


def _checked(config: ModelConfig, origin: str) -> ModelConfig:
    if config.heads % config.kv_heads:
        raise StartError(
            StartReason.MODEL_INVALID,
            f"{origin}: {config.heads} attention heads cannot share {config.kv_heads} key-value heads evenly",
        )
    if config.head_dim % 2:
        raise StartError(StartReason.MODEL_INVALID, f"{origin}: the head width {config.head_dim} must be even")
    return config


def _unsupported(origin: str, what: str) -> StartError:
    return StartError(StartReason.MODEL_UNSUPPORTED, f"{origin}: {what} is not supported")
