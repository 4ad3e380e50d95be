"""config.json values become a ModelConfig, in every spelling that Hugging Face has used."""

from __future__ import annotations

import math
from typing import Any

import pytest

from kvik_engine.errors import StartError, StartReason
from kvik_engine.layers.rope_scaling import LinearScaling, Llama3Scaling, YarnScaling
from kvik_engine.models.config import Experts, LatentAttention, ModelConfig, WindowAttention
from kvik_engine.models.random_weights import RandomTensors
from kvik_engine.models.read_config import from_hf
from kvik_engine.models.registry import build
from kvik_engine.weights.gguf_config import config_from_gguf
from kvik_engine.weights.gguf_header import GGUFHeader, TensorInfo
from tests.support.model_files import CONFIG, LLAMA_METADATA

LLAMA3 = {
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def config(**values: Any) -> Any:
    return from_hf({**CONFIG, **values})


def test_defaults_are_those_of_hugging_face() -> None:
    bare = {key: value for key, value in CONFIG.items() if key not in ("num_key_value_heads", "head_dim")}
    got = from_hf(bare)

    assert (got.heads, got.kv_heads, got.head_dim) == (4, 4, 4)
    assert (got.attention_bias, got.mlp_bias, got.rope_scaling) == (False, False, None)


@pytest.mark.parametrize(
    ("values", "theta", "scaling"),
    [
        ({"rope_theta": 500000.0}, 500000.0, None),
        ({"rope_theta": None, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}, 1e6, None),
        ({"rope_scaling": None}, 10000.0, None),
        ({"rope_scaling": {"type": "linear", "factor": 2}}, 10000.0, LinearScaling(2.0)),
        ({"rope_scaling": {"rope_type": "llama3", **LLAMA3}}, 10000.0, Llama3Scaling(32.0, 1.0, 4.0, 8192)),
        (
            {"rope_theta": None, "rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, **LLAMA3}},
            5e5,
            Llama3Scaling(32.0, 1.0, 4.0, 8192),
        ),
    ],
    ids=["theta", "transformers 5", "null scaling", "old linear", "llama 3.1", "llama 3.1 in transformers 5"],
)
def test_rope_is_read_in_old_and_new_spelling(values: dict[str, Any], theta: float, scaling: object) -> None:
    got = config(**values)

    assert got.rope_theta == theta
    assert got.rope_scaling == scaling


def test_a_sliding_window_holds_for_all_layers_or_for_those_listed() -> None:
    assert config(sliding_window=None).window is None
    assert config(sliding_window=16).window == WindowAttention(tokens=16, layers=(0, 1), rope_theta=10000.0)
    listed = config(sliding_window=16, layer_types=["sliding_attention", "full_attention"])
    assert listed.window == WindowAttention(tokens=16, layers=(0,), rope_theta=10000.0)


def test_a_window_that_hides_nothing_is_none() -> None:
    assert config(sliding_window=64).window is None, "the context is 64 tokens"
    assert config(sliding_window=16, use_sliding_window=False).window is None
    assert config(sliding_window=16, layer_types=["full_attention"] * 2).window is None


YARN = {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096}


@pytest.mark.parametrize(
    ("values", "magnitude"),
    [
        ({}, 0.1 * math.log(40) + 1),
        ({"mscale": 0.707, "mscale_all_dim": 0.707}, 1.0),
        ({"mscale": 1.0, "mscale_all_dim": 0.5}, (0.1 * math.log(40) + 1) / (0.05 * math.log(40) + 1)),
        ({"attention_factor": 1.5}, 1.5),
    ],
    ids=["by the factor", "DeepSeek-V2", "two weights", "stated"],
)
def test_yarn_says_by_how_much_it_sharpens(values: dict[str, Any], magnitude: float) -> None:
    got = config(rope_scaling={**YARN, "beta_fast": 16, **values}).rope_scaling

    assert got == YarnScaling(40.0, 4096, 16.0, 1.0, pytest.approx(magnitude), True)


def gemma(**values: Any) -> ModelConfig:
    """What the file of the 4B model says of its text, and little more."""
    return from_hf(
        {
            "architectures": ["Gemma3ForCausalLM"],
            "hidden_size": 2560,
            "intermediate_size": 10240,
            "num_hidden_layers": 34,
            "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
            "sliding_window": 1024,
            **values,
        }
    )


def test_gemma_3_is_read_by_the_defaults_that_its_files_rely_on() -> None:
    got = gemma()

    assert (got.vocab_size, got.heads, got.kv_heads, got.head_dim) == (262208, 8, 4, 256)
    assert (got.context_length, got.norm_eps, got.tie_embeddings, got.query_scale) == (131072, 1e-6, True, 1 / 16)
    assert (got.rope_theta, got.rope_scaling) == (1e6, LinearScaling(8.0))
    assert got.window is not None
    assert (got.window.tokens, got.window.rope_theta) == (1024, 10000.0)
    assert [layer for layer in range(34) if layer not in got.window.layers] == [5, 11, 17, 23, 29]


def test_gemma_3_is_read_alike_in_old_and_new_spelling() -> None:
    kinds = ["full_attention" if layer % 6 == 5 else "sliding_attention" for layer in range(34)]
    new = gemma(
        layer_types=kinds,
        rope_scaling=None,
        rope_parameters={
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 2e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 5e3},
        },
    )

    assert new == gemma(rope_theta=2e6, rope_local_base_freq=5e3, sliding_window_pattern=6)


DEEPSEEK_V2_LITE: dict[str, Any] = {
    "architectures": ["DeepseekV2ForCausalLM"],
    "hidden_size": 2048,
    "intermediate_size": 10944,
    "moe_intermediate_size": 1408,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "n_shared_experts": 2,
    "n_routed_experts": 64,
    "num_experts_per_tok": 6,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 512,
    "q_lora_rank": None,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "topk_method": "greedy",
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": False,
    "scoring_func": "softmax",
    "routed_scaling_factor": 1.0,
    "moe_layer_freq": 1,
    "max_position_embeddings": 163840,
    "vocab_size": 102400,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000,
    "rope_scaling": {**YARN, "beta_fast": 32, "beta_slow": 1, "mscale": 0.707, "mscale_all_dim": 0.707},
}


def deepseek(**values: Any) -> ModelConfig:
    return from_hf({**DEEPSEEK_V2_LITE, **values})


def test_deepseek_v2_is_read_with_its_latents_and_experts() -> None:
    got = deepseek()

    assert got.latent == LatentAttention(kv_rank=512, query_rank=None, nope_dim=128, rope_dim=64, value_dim=128)
    assert got.experts == Experts(count=64, per_token=6, intermediate_size=1408, shared=2, first_layer=1, scaling=1.0)
    assert got.query_scale == pytest.approx(192**-0.5 * (0.0707 * math.log(40) + 1) ** 2)
    assert deepseek(n_routed_experts=None).experts is None


def test_deepseek_v2_chooses_among_groups_of_experts_when_told_to() -> None:
    got = deepseek(topk_method="group_limited_greedy", n_group=8, topk_group=3).experts

    assert got is not None
    assert (got.groups, got.groups_per_token) == (8, 3)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"kv_lora_rank": None}, StartReason.MODEL_INVALID),
        ({"kv_lora_rank": -1}, StartReason.MODEL_INVALID),
        ({"qk_rope_head_dim": 63}, StartReason.MODEL_INVALID),
        ({"num_key_value_heads": 8}, StartReason.MODEL_INVALID),
        ({"num_experts_per_tok": 65}, StartReason.MODEL_INVALID),
        ({"first_k_dense_replace": 28}, StartReason.MODEL_INVALID),
        ({"topk_method": "group_limited_greedy", "n_group": 7, "topk_group": 1}, StartReason.MODEL_INVALID),
        ({"topk_method": "group_limited_greedy", "n_group": 8, "topk_group": 9}, StartReason.MODEL_INVALID),
        ({"topk_method": "group_limited_greedy", "n_group": 32, "topk_group": 2}, StartReason.MODEL_INVALID),
        ({"topk_method": "noaux_tc"}, StartReason.MODEL_UNSUPPORTED),
        ({"scoring_func": "sigmoid"}, StartReason.MODEL_UNSUPPORTED),
        ({"norm_topk_prob": True}, StartReason.MODEL_UNSUPPORTED),
        ({"moe_layer_freq": 2}, StartReason.MODEL_UNSUPPORTED),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else str(value),
)
def test_what_a_deepseek_file_must_not_say_is_refused(values: dict[str, Any], reason: StartReason) -> None:
    with pytest.raises(StartError) as caught:
        deepseek(**values)

    assert caught.value.reason is reason


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"sliding_window_pattern": 0}, StartReason.MODEL_INVALID),
        ({"query_pre_attn_scalar": 0}, StartReason.MODEL_INVALID),
        ({"rope_parameters": {"full_attention": 7}}, StartReason.MODEL_INVALID),
        (
            {"rope_parameters": {"sliding_attention": {"rope_type": "linear", "factor": 2}}},
            StartReason.MODEL_UNSUPPORTED,
        ),
        ({"final_logit_softcapping": 30.0}, StartReason.MODEL_UNSUPPORTED),
        ({"attn_logit_softcapping": 50.0}, StartReason.MODEL_UNSUPPORTED),
        ({"use_bidirectional_attention": True}, StartReason.MODEL_UNSUPPORTED),
        ({"hidden_activation": "relu"}, StartReason.MODEL_UNSUPPORTED),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else str(value),
)
def test_what_a_gemma_file_must_not_say_is_refused(values: dict[str, Any], reason: StartReason) -> None:
    with pytest.raises(StartError) as caught:
        gemma(**values)

    assert caught.value.reason is reason


def test_an_unknown_architecture_is_refused_with_those_that_work() -> None:
    with pytest.raises(
        StartError, match="'Qwen9ForCausalLM' is not supported; supported are LlamaForCausalLM"
    ) as caught:
        build(config(architectures=["Qwen9ForCausalLM"]), NO_TENSORS)

    assert caught.value.reason is StartReason.MODEL_UNSUPPORTED


NO_TENSORS: RandomTensors = None  # type: ignore[assignment]


def gguf(tensors: dict[str, tuple[int, ...]] | None = None, **metadata: object) -> Any:
    shapes = {"token_embd.weight": (32, 48), **(tensors or {})}
    table = tuple(TensorInfo(name, shape, 0, 0) for name, shape in shapes.items())
    values = {**LLAMA_METADATA, **{key.replace("__", "."): value for key, value in metadata.items()}}
    return from_hf(config_from_gguf(GGUFHeader(3, values, table, 0, 0)))


def test_a_gguf_files_metadata_gives_the_same_config() -> None:
    got = gguf(llama__rope__freq_base=100000.0)

    assert (got.architecture, got.vocab_size, got.hidden_size, got.layers) == ("LlamaForCausalLM", 48, 32, 1)
    assert (got.heads, got.kv_heads, got.head_dim, got.rope_theta) == (4, 2, 8, 100000.0)


def test_a_gguf_file_without_an_output_matrix_has_tied_embeddings() -> None:
    assert gguf().tie_embeddings
    assert not gguf({"output.weight": (32, 48)}).tie_embeddings


def test_linear_scaling_in_a_gguf_file_is_read() -> None:
    got = gguf(llama__rope__scaling__type="linear", llama__rope__scaling__factor=4.0)

    assert got.rope_scaling == LinearScaling(4.0)


@pytest.mark.parametrize(
    "metadata",
    [
        {"llama__expert_count": 8},
        {"llama__attention__sliding_window": 4096},
        {"llama__rope__dimension_count": 4},
        {"llama__attention__value_length": 16},
    ],
    ids=["experts", "window", "partial rotary", "wider values"],
)
def test_what_a_gguf_file_asks_for_and_we_do_not_compute_is_refused(metadata: dict[str, object]) -> None:
    with pytest.raises(StartError) as caught:
        gguf(**metadata)

    assert caught.value.reason is StartReason.MODEL_UNSUPPORTED


@pytest.mark.parametrize("name", ["GPT2LMHeadModel", "Gemma3ForConditionalGeneration"])
def test_an_unknown_architecture_is_told_before_the_fields_that_it_lacks(name: str) -> None:
    with pytest.raises(StartError, match=f"'{name}' is not supported") as refused:
        from_hf({"architectures": [name], "n_embd": 768})
    assert refused.value.reason is StartReason.MODEL_UNSUPPORTED
