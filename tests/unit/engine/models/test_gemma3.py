"""The Gemma-3 family, and Mistral's window in all layers, against transformers' own code on small random models.

Windows are smaller and larger than a block and no multiple of one; prompts are longer than the window.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import Gemma3ForCausalLM, Gemma3TextConfig, MistralConfig, MistralForCausalLM, PreTrainedModel

from kvik_engine.attention.backend import AttentionBackend
from kvik_engine.attention.cpu_backend import CpuBackend
from kvik_engine.attention.reference import ReferenceBackend
from kvik_engine.models.registry import Model
from tests.support.paged_steps import PagedModel
from tests.support.random_family import random_family

BASE: dict[str, Any] = {
    "vocab_size": 101,
    "hidden_size": 42,
    "intermediate_size": 80,
    "num_hidden_layers": 5,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "head_dim": 10,
    "max_position_embeddings": 512,
}
GEMMA: dict[str, Any] = {
    **BASE,
    "query_pre_attn_scalar": 7,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention", "sliding_attention"],
}
STRETCHED = {
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e3},
}
LENGTHS = (1, 30, 75)
BACKENDS = pytest.mark.parametrize("backend", [ReferenceBackend(), CpuBackend()], ids=["reference", "cpu"])


def gemma(**values: Any) -> PreTrainedModel:
    return Gemma3ForCausalLM(Gemma3TextConfig(**{**GEMMA, **values}))


def mistral(**values: Any) -> PreTrainedModel:
    return MistralForCausalLM(MistralConfig(**{**BASE, **values}))


def ours_and_theirs(theirs: PreTrainedModel, folder: Path) -> tuple[Model, PreTrainedModel]:
    return random_family(theirs, folder).ours(), theirs


def prompts() -> list[Tensor]:
    draw = torch.Generator().manual_seed(2)
    return [torch.randint(0, 101, (length,), generator=draw) for length in LENGTHS]


def check(ours: Model, theirs: PreTrainedModel, backend: AttentionBackend, chunks: list[int]) -> None:
    got = PagedModel(ours, backend, blocks=200).run(prompts(), chunks)
    with torch.inference_mode():
        for prompt, logits in zip(prompts(), got, strict=True):
            torch.testing.assert_close(logits, theirs(prompt[None]).logits[0], atol=3e-5, rtol=3e-5)


@BACKENDS
@pytest.mark.parametrize("window", [3, 4, 10, 17, 500], ids="window {}".format)
def test_gemmas_logits_equal_those_of_transformers(tmp_path: Path, backend: AttentionBackend, window: int) -> None:
    """Whole prompts, then chunks of 7 that end where they will."""
    ours, theirs = ours_and_theirs(gemma(sliding_window=window), tmp_path)

    check(ours, theirs, backend, [100])
    check(ours, theirs, backend, [7])


@pytest.mark.parametrize("window", [3, 10, 17], ids="window {}".format)
def test_a_prompt_in_chunks_and_then_token_by_token_changes_nothing(tmp_path: Path, window: int) -> None:
    ours, theirs = ours_and_theirs(gemma(sliding_window=window), tmp_path)

    check(ours, theirs, CpuBackend(), [13, 9, 1])


@pytest.mark.parametrize(
    "values",
    [
        {"rope_parameters": STRETCHED},
        {"attention_bias": True},
        {"tie_word_embeddings": False},
        {"num_key_value_heads": 1},
        {"layer_types": ["full_attention"] * 5},
    ],
    ids=["stretched", "biased", "untied", "one kv head", "no window layer"],
)
def test_every_trait_of_a_gemma_is_computed(tmp_path: Path, values: dict[str, Any]) -> None:
    ours, theirs = ours_and_theirs(gemma(sliding_window=10, **values), tmp_path)

    check(ours, theirs, CpuBackend(), [20])
    assert ours.parameters == sum(parameter.numel() for parameter in theirs.parameters())


@BACKENDS
@pytest.mark.parametrize("window", [3, 17], ids="window {}".format)
def test_mistrals_window_is_a_window_and_no_shorter_context(
    tmp_path: Path, backend: AttentionBackend, window: int
) -> None:
    ours, theirs = ours_and_theirs(mistral(sliding_window=window), tmp_path)

    assert ours.config.context_length == 512
    check(ours, theirs, backend, [100])
    check(ours, theirs, backend, [13, 9, 1])


def test_a_row_in_a_window_needs_no_more_blocks_however_long_it_becomes(tmp_path: Path) -> None:
    ours, _ = ours_and_theirs(mistral(sliding_window=10), tmp_path)
    paged = PagedModel(ours, CpuBackend(), blocks=10 // 4 + 2)
    (logits,) = paged.run([torch.arange(101)], [4])

    assert logits.isfinite().all()
