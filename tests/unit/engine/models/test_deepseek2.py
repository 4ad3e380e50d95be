"""The DeepSeek-V2 family against transformers' own code on small random models: latents, YaRN, experts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DeepseekV2Config, DeepseekV2ForCausalLM, PreTrainedModel

from kvik_engine.attention.backend import AttentionBackend
from kvik_engine.attention.cpu_backend import CpuBackend
from kvik_engine.attention.kv_layout import KVFormats
from kvik_engine.attention.reference import ReferenceBackend
from kvik_engine.attention.triton_backend import TritonBackend
from kvik_engine.errors import StartError, StartReason
from kvik_engine.models.kv_groups import kv_groups
from kvik_engine.models.registry import Model
from kvik_engine.runner.load import make_runner
from kvik_engine.runner.runner import RunnerLimits
from tests.support.paged_steps import PagedModel
from tests.support.random_family import random_family

SHAPE: dict[str, Any] = {
    "vocab_size": 101,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 6,
    "max_position_embeddings": 512,
    "first_k_dense_replace": 2,
    "kv_lora_rank": 20,
    "q_lora_rank": 28,
    "qk_nope_head_dim": 10,
    "qk_rope_head_dim": 6,
    "v_head_dim": 11,
    "n_routed_experts": 6,
    "n_shared_experts": 2,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 12,
    "routed_scaling_factor": 1.5,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 8.0,
    "original_max_position_embeddings": 64,
    "beta_fast": 4,
    "beta_slow": 1,
    "mscale": 1.0,
    "mscale_all_dim": 0.707,
}
TRAITS: dict[str, dict[str, Any]] = {
    "queries through a latent": {},
    "queries at once": {"q_lora_rank": None},
    "yarn": {"rope_parameters": YARN},
    "yarn with one weight": {"rope_parameters": {**YARN, "mscale": 0.707}},
    "experts in groups": {"topk_method": "group_limited_greedy", "n_group": 3, "topk_group": 2},
    "no dense layer": {"first_k_dense_replace": 0},
    "no expert": {"first_k_dense_replace": 4},
    "biases": {"attention_bias": True},
    "tied": {"tie_word_embeddings": True},
}
LENGTHS = (1, 30, 75)


def deepseek(**values: Any) -> PreTrainedModel:
    return DeepseekV2ForCausalLM(DeepseekV2Config(**{**SHAPE, **values}))


def prompts() -> list[Tensor]:
    draw = torch.Generator().manual_seed(2)
    return [torch.randint(0, 101, (length,), generator=draw) for length in LENGTHS]


def check(ours: Model, theirs: PreTrainedModel, backend: AttentionBackend, chunks: list[int]) -> None:
    got = PagedModel(ours, backend, blocks=200).run(prompts(), chunks)
    with torch.inference_mode():
        for prompt, logits in zip(prompts(), got, strict=True):
            torch.testing.assert_close(logits, theirs(prompt[None]).logits[0], atol=3e-5, rtol=3e-5)


@pytest.mark.parametrize("values", TRAITS.values(), ids=TRAITS.keys())
def test_logits_equal_those_of_transformers(tmp_path: Path, values: dict[str, Any]) -> None:
    family = random_family(deepseek(**values), tmp_path)
    ours = family.ours()

    check(ours, family.theirs, CpuBackend(), [100])
    check(ours, family.theirs, CpuBackend(), [13, 9, 1])
    assert ours.parameters == sum(parameter.numel() for parameter in family.theirs.parameters())


def test_the_reference_attends_to_latents_alike(tmp_path: Path) -> None:
    family = random_family(deepseek(), tmp_path)

    check(family.ours(), family.theirs, ReferenceBackend(), [13])


def test_a_token_leaves_its_latent_and_one_rotary_key_in_the_cache(tmp_path: Path) -> None:
    family = random_family(deepseek(), tmp_path)
    (group,) = family.runner(rows=2, block_tokens=4).facts.groups

    assert group.block_bytes == 4 * 4 * (20 + 6) * 4, "tokens x layers x elements x bytes"


@pytest.mark.parametrize("flags", [("int8", "auto"), ("auto", "fp8")], ids="-".join)
def test_a_latent_is_not_quantised(tmp_path: Path, flags: tuple[str, str]) -> None:
    family = random_family(deepseek(), tmp_path)
    with pytest.raises(
        StartError, match=r"latent KV cache .* leave --kv-key-dtype and --kv-value-dtype at auto"
    ) as caught:
        kv_groups(family.config, 16, KVFormats.of("fp32", *flags))

    assert caught.value.reason is StartReason.MODEL_UNSUPPORTED


def test_a_backend_that_knows_no_latents_is_refused_at_the_start(tmp_path: Path) -> None:
    family = random_family(deepseek(), tmp_path)
    with pytest.raises(StartError, match="--attention=reference") as caught:
        make_runner(
            family.config,
            family.tensors,
            dtype="fp32",
            backend=TritonBackend(fp8=True),
            limits=RunnerLimits(max_requests=2, max_tokens=64, block_tokens=4),
            max_batch_tokens=16,
            progress=lambda _: None,
        )

    assert caught.value.reason is StartReason.MODEL_UNSUPPORTED
