"""The count of parameters that `kvik plan` makes of a config is that of transformers' own model, tensor for tensor."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from transformers import DeepseekV2Config, Gemma3TextConfig, LlamaConfig, PreTrainedConfig
from transformers.models.auto.modeling_auto import AutoModelForCausalLM

from kvik_engine.models.parameters import ParameterCount, count_parameters
from kvik_engine.models.read_config import from_hf

BASE: dict[str, Any] = {
    "vocab_size": 101,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 5,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 10,
}
DEEPSEEK = {
    **BASE,
    "num_key_value_heads": 6,
    "first_k_dense_replace": 2,
    "kv_lora_rank": 20,
    "q_lora_rank": 28,
    "qk_nope_head_dim": 9,
    "qk_rope_head_dim": 6,
    "v_head_dim": 11,
    "n_routed_experts": 7,
    "n_shared_experts": 2,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 13,
}
CONFIGS: dict[str, tuple[str, PreTrainedConfig]] = {
    "llama": ("LlamaForCausalLM", LlamaConfig(**BASE)),
    "llama, biased and tied": (
        "LlamaForCausalLM",
        LlamaConfig(**BASE, attention_bias=True, mlp_bias=True, tie_word_embeddings=True),
    ),
    "gemma 3": ("Gemma3ForCausalLM", Gemma3TextConfig(**BASE)),
    "deepseek 2": ("DeepseekV2ForCausalLM", DeepseekV2Config(**DEEPSEEK)),
    "deepseek 2, queries at once": (
        "DeepseekV2ForCausalLM",
        DeepseekV2Config(**{**DEEPSEEK, "q_lora_rank": None, "attention_bias": True}),
    ),
}


def count(architecture: str, config: PreTrainedConfig) -> ParameterCount:
    return count_parameters(from_hf({**json.loads(config.to_json_string()), "architectures": [architecture]}))


@pytest.mark.parametrize(("architecture", "config"), CONFIGS.values(), ids=CONFIGS.keys())
def test_all_parameters_are_counted(architecture: str, config: PreTrainedConfig) -> None:
    with torch.device("meta"):
        theirs = AutoModelForCausalLM.from_config(config)

    assert count(architecture, config).total == sum(parameter.numel() for parameter in theirs.parameters())


def test_a_token_goes_through_its_own_experts_and_one_row_of_an_embedding() -> None:
    idle_experts = 3 * (7 - 3) * 3 * 48 * 13
    deepseek = count(*CONFIGS["deepseek 2"])
    llama = count(*CONFIGS["llama"])
    tied = count(*CONFIGS["llama, biased and tied"])

    assert deepseek.total - deepseek.per_token == idle_experts + 101 * 48
    assert llama.total - llama.per_token == 101 * 48
    assert tied.total == tied.per_token
