"""A ModelConfig from the values of config.json (weights.gguf_config writes a GGUF's metadata that way).

Values only: no torch, no code. Everything in these files is somebody else's input: a value of the wrong type or size is
ModelInvalid, a feature that this engine does not compute is ModelUnsupported.
"""

from __future__ import annotations

from collections.abc import Mapping

from kvik_engine.errors import StartError, StartReason
from kvik_engine.layers.rope_scaling import LinearScaling, Llama3Scaling, RopeScaling, YarnScaling, yarn_magnitude
from kvik_engine.models.architectures import check_architecture
from kvik_engine.models.config import Experts, LatentAttention, ModelConfig, WindowAttention
from kvik_engine.models.fields import MAX_LENGTH, Fields

MAX_LAYERS = 4096


def from_hf(values: Mapping[str, object], origin: str = "config.json") -> ModelConfig:
    """The config of a Hugging Face model directory.

    Raises StartError (ModelInvalid, ModelUnsupported).
    """
    fields = Fields(values, origin)
    architecture = _architecture(values, origin)
    check_architecture(architecture)
    if fields.has("quantization_config"):
        raise fields.unsupported("quantized safetensors weights")
    read = {"Gemma3ForCausalLM": _gemma3, "DeepseekV2ForCausalLM": _deepseek2}.get(architecture, _llama)
    return read(fields, architecture)


def _architecture(values: Mapping[str, object], origin: str) -> str:
    architectures = values.get("architectures")
    if not isinstance(architectures, list) or len(architectures) != 1 or not isinstance(architectures[0], str):
        raise StartError(StartReason.MODEL_INVALID, f"{origin}: architectures must be a list of one name")
    return architectures[0]


def _llama(fields: Fields, architecture: str) -> ModelConfig:
    hidden = fields.integer("hidden_size")
    heads = fields.integer("num_attention_heads")
    layers = fields.integer("num_hidden_layers", at_most=MAX_LAYERS)
    context = fields.integer("max_position_embeddings", at_most=MAX_LENGTH)
    _require_activation(fields, "hidden_act", "silu", "swish")
    rope, theta = _rope(fields)
    windowed = tuple(range(layers)) if fields.flag("use_sliding_window", default=True) else ()
    window = _window(fields, layers, context, windowed, theta)
    return _checked(
        fields,
        ModelConfig(
            architecture=architecture,
            vocab_size=fields.integer("vocab_size", at_most=MAX_LENGTH),
            hidden_size=hidden,
            intermediate_size=fields.integer("intermediate_size"),
            layers=layers,
            heads=heads,
            kv_heads=fields.integer("num_key_value_heads", default=heads),
            head_dim=fields.integer("head_dim", default=max(1, hidden // heads)),
            context_length=context,
            norm_eps=fields.number("rms_norm_eps", default=1e-6),
            rope_theta=theta,
            rope_scaling=_scaling(rope, context),
            tie_embeddings=fields.flag("tie_word_embeddings", default=False),
            attention_bias=fields.flag("attention_bias", default=False),
            mlp_bias=fields.flag("mlp_bias", default=False),
            # Within one window nothing is hidden: then all layers are alike.
            window=window if window is not None and window.tokens < context else None,
        ),
    )


def _gemma3(fields: Fields, architecture: str) -> ModelConfig:
    """Defaults are those of Hugging Face's Gemma3TextConfig: published files rely on them."""
    layers = fields.integer("num_hidden_layers", at_most=MAX_LAYERS)
    context = fields.integer("max_position_embeddings", default=131072, at_most=MAX_LENGTH)
    _require_activation(fields, "hidden_activation", "gelu_pytorch_tanh")
    for key in ("final_logit_softcapping", "attn_logit_softcapping"):
        if fields.has(key):
            raise fields.unsupported(key)
    if fields.flag("use_bidirectional_attention", default=False):
        raise fields.unsupported("attention to later tokens")
    by_kind = fields.mapping("rope_parameters")
    rope = by_kind.mapping("full_attention") if by_kind else fields.mapping("rope_scaling")
    local = by_kind.mapping("sliding_attention") if by_kind else None
    if _scaling(local, context) is not None:
        raise fields.unsupported("rope scaling of window layers")
    pattern = fields.integer("sliding_window_pattern", default=6)
    windowed = tuple(layer for layer in range(layers) if (layer + 1) % pattern)
    local_theta = fields.number("rope_local_base_freq", default=10000.0)
    return _checked(
        fields,
        ModelConfig(
            architecture=architecture,
            vocab_size=fields.integer("vocab_size", default=262208, at_most=MAX_LENGTH),
            hidden_size=fields.integer("hidden_size"),
            intermediate_size=fields.integer("intermediate_size"),
            layers=layers,
            heads=fields.integer("num_attention_heads", default=8),
            kv_heads=fields.integer("num_key_value_heads", default=4),
            head_dim=fields.integer("head_dim", default=256),
            context_length=context,
            norm_eps=fields.number("rms_norm_eps", default=1e-6),
            rope_theta=_theta(fields, rope, default=1000000.0),
            rope_scaling=_scaling(rope, context),
            tie_embeddings=fields.flag("tie_word_embeddings", default=True),
            attention_bias=fields.flag("attention_bias", default=False),
            query_scale=fields.number("query_pre_attn_scalar", default=256) ** -0.5,
            sandwich_norms=True,
            window=_window(
                fields,
                layers,
                context,
                windowed,
                local.number("rope_theta", default=local_theta) if local else local_theta,
                default=4096,
            ),
        ),
    )


def _deepseek2(fields: Fields, architecture: str) -> ModelConfig:
    heads = fields.integer("num_attention_heads")
    layers = fields.integer("num_hidden_layers", at_most=MAX_LAYERS)
    context = fields.integer("max_position_embeddings", at_most=MAX_LENGTH)
    _require_activation(fields, "hidden_act", "silu", "swish")
    if fields.integer("num_key_value_heads", default=heads) != heads:
        raise fields.invalid("num_key_value_heads", f"{heads}, as many as attention heads")
    latent = LatentAttention(
        kv_rank=fields.integer("kv_lora_rank"),
        query_rank=fields.integer("q_lora_rank") if fields.has("q_lora_rank") else None,
        nope_dim=fields.integer("qk_nope_head_dim"),
        rope_dim=fields.integer("qk_rope_head_dim"),
        value_dim=fields.integer("v_head_dim"),
    )
    rope, theta = _rope(fields)
    width = latent.nope_dim + latent.rope_dim
    # Scaling raises the scores as well, unless the file leaves it out: DeepSeek's own addition to YaRN.
    raised = 1.0
    if rope is not None and rope.has("mscale_all_dim") and _rope_type(rope) != "default":
        raised = yarn_magnitude(rope.number("factor"), rope.number("mscale_all_dim"))
    return _checked(
        fields,
        ModelConfig(
            architecture=architecture,
            vocab_size=fields.integer("vocab_size", at_most=MAX_LENGTH),
            hidden_size=fields.integer("hidden_size"),
            intermediate_size=fields.integer("intermediate_size"),
            layers=layers,
            heads=heads,
            kv_heads=heads,
            head_dim=width,
            context_length=context,
            norm_eps=fields.number("rms_norm_eps", default=1e-6),
            rope_theta=theta,
            rope_scaling=_scaling(rope, context),
            tie_embeddings=fields.flag("tie_word_embeddings", default=False),
            attention_bias=fields.flag("attention_bias", default=False),
            mlp_bias=fields.flag("mlp_bias", default=False),
            query_scale=width**-0.5 * raised * raised,
            latent=latent,
            experts=_experts(fields, layers),
        ),
    )


def _experts(fields: Fields, layers: int) -> Experts | None:
    if not fields.has("n_routed_experts"):
        return None
    if fields.integer("moe_layer_freq", default=1) != 1:
        raise fields.unsupported("experts in some of the later layers only")
    if fields.text("scoring_func", default="softmax") != "softmax":
        raise fields.unsupported(f"the expert score {fields.text('scoring_func')!r}")
    if fields.flag("norm_topk_prob", default=False):
        raise fields.unsupported("norm_topk_prob")
    method = fields.text("topk_method", default="greedy")
    if method not in ("greedy", "group_limited_greedy"):
        raise fields.unsupported(f"the expert choice {repr(method)[:80]}")
    grouped = method == "group_limited_greedy"
    count = fields.integer("n_routed_experts")
    groups = fields.integer("n_group", at_most=count) if grouped else None
    if groups is not None and count % groups:
        raise fields.invalid("n_group", f"a divisor of n_routed_experts {count}")
    groups_per_token = fields.integer("topk_group", at_most=groups) if groups is not None else None
    choice = count if groups is None or groups_per_token is None else count // groups * groups_per_token
    return Experts(
        count=count,
        per_token=fields.integer("num_experts_per_tok", at_most=choice),
        intermediate_size=fields.integer("moe_intermediate_size"),
        shared=fields.integer("n_shared_experts", default=0, at_least=0),
        first_layer=fields.integer("first_k_dense_replace", default=0, at_least=0, at_most=layers),
        scaling=fields.number("routed_scaling_factor", default=1.0),
        groups=groups,
        groups_per_token=groups_per_token,
    )


def _window(
    fields: Fields,
    layers: int,
    context: int,
    windowed: tuple[int, ...],
    theta: float,
    *,
    default: int | None = None,
) -> WindowAttention | None:
    """`windowed` are the window's layers where the file does not list every layer's kind."""
    if fields.has("layer_types"):
        kinds = fields.texts("layer_types", count=layers)
        unknown = sorted({*kinds} - {"full_attention", "sliding_attention"})
        if unknown:
            raise fields.unsupported(f"the layer type {unknown[0][:80]!r}")
        windowed = tuple(layer for layer, kind in enumerate(kinds) if kind == "sliding_attention")
    if not windowed or (default is None and not fields.has("sliding_window")):
        return None
    tokens = fields.integer("sliding_window", default=default, at_most=MAX_LENGTH)
    return WindowAttention(tokens=min(tokens, context), layers=windowed, rope_theta=theta)


def _rope(fields: Fields) -> tuple[Fields | None, float]:
    """The rope's own object, by its new or its old name, and theta, which stands in either place."""
    rope = fields.mapping("rope_parameters") or fields.mapping("rope_scaling")
    return rope, _theta(fields, rope, default=10000.0)


def _theta(fields: Fields, rope: Fields | None, *, default: float) -> float:
    return fields.number("rope_theta", default=rope.number("rope_theta", default=default) if rope else default)


def _rope_type(rope: Fields) -> str:
    return rope.text("rope_type", default=rope.text("type", default="default"))


def _scaling(rope: Fields | None, context: int) -> RopeScaling | None:
    if rope is None:
        return None
    if rope.number("partial_rotary_factor", default=1.0) != 1.0:
        raise rope.unsupported("rotary embedding of a part of each head")
    kind = _rope_type(rope)
    if kind == "default":
        return None
    if kind == "linear":
        return LinearScaling(rope.number("factor"))
    if kind not in ("llama3", "yarn"):
        raise rope.unsupported(f"rope scaling {repr(kind)[:80]}")
    original = rope.integer("original_max_position_embeddings", default=context, at_most=MAX_LENGTH)
    factor = rope.number("factor")
    if kind == "yarn":
        return _yarn(rope, factor, original)
    low, high = rope.number("low_freq_factor"), rope.number("high_freq_factor")
    if low >= high:
        raise rope.invalid("high_freq_factor", f"more than low_freq_factor {low}")
    return Llama3Scaling(factor=factor, low_freq_factor=low, high_freq_factor=high, original_context=original)


def _yarn(rope: Fields, factor: float, original: int) -> YarnScaling:
    fast, slow = rope.number("beta_fast", default=32.0), rope.number("beta_slow", default=1.0)
    if slow >= fast:
        raise rope.invalid("beta_fast", f"more than beta_slow {slow}")
    if rope.has("mscale") and rope.has("mscale_all_dim"):
        magnitude = yarn_magnitude(factor, rope.number("mscale")) / yarn_magnitude(
            factor, rope.number("mscale_all_dim")
        )
    else:
        magnitude = yarn_magnitude(factor, 1.0)
    return YarnScaling(
        factor=factor,
        original_context=original,
        beta_fast=fast,
        beta_slow=slow,
        magnitude=rope.number("attention_factor", default=magnitude),
        whole_dims=rope.flag("truncate", default=True),
    )


def _require_activation(fields: Fields, key: str, *known: str) -> None:
    activation = fields.text(key, default=known[0])
    if activation not in known:
        raise fields.unsupported(f"the activation {repr(activation)[:80]}")


def _checked(fields: Fields, config: ModelConfig) -> ModelConfig:
    if config.heads % config.kv_heads:
        raise StartError(
            StartReason.MODEL_INVALID,
            f"{fields.origin}: {config.heads} attention heads cannot share {config.kv_heads} key-value heads evenly",
        )
    rotated = config.head_dim if config.latent is None else config.latent.rope_dim
    if rotated % 2:
        raise StartError(StartReason.MODEL_INVALID, f"{fields.origin}: the head width {rotated} must be even")
    if isinstance(config.rope_scaling, YarnScaling) and config.rope_theta <= 1:
        raise StartError(StartReason.MODEL_INVALID, f"{fields.origin}: rope_theta must be more than 1 to be stretched")
    return config
