"""Models with windows and latents through the engine core: scheduler, KV manager and runner as in production.

Prompts are longer than the window. Chunks, prefix hits, preemption, forks and steps planned ahead change no token, so
rotary positions stay right after reuse and fork (vllm #2728 recomputed them from the cached length).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    DeepseekV2Config,
    DeepseekV2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
)

from kvik_engine.params import BeamParams, SamplingParams
from kvik_engine.runner.runner import ModelRunner
from kvik_engine.step import StepPlan
from tests.support.plain_beam_search import plain_beam_search
from tests.support.random_family import Family, random_family
from tests.support.real_core import RealCore, Settings, engine_config

BLOCK_TOKENS, ROWS, OUTPUTS = 4, 12, 16
STOPS = tuple(range(1, 101, 4))
GREEDY = SamplingParams(max_tokens=OUTPUTS, seed=0, temperature=0.0)
SHAPE: dict[str, Any] = {
    "vocab_size": 101,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "head_dim": 10,
    "max_position_embeddings": 128,
    "sliding_window": 10,
}


def gemma() -> PreTrainedModel:
    return Gemma3ForCausalLM(Gemma3TextConfig(**SHAPE, sliding_window_pattern=2, query_pre_attn_scalar=10))


def mistral() -> PreTrainedModel:
    return MistralForCausalLM(MistralConfig(**SHAPE))


def deepseek() -> PreTrainedModel:
    """Two dense layers, two of experts."""
    latent = {"kv_lora_rank": 20, "q_lora_rank": 28, "qk_nope_head_dim": 10, "qk_rope_head_dim": 6, "v_head_dim": 11}
    experts = {"n_routed_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 12, "first_k_dense_replace": 2}
    shape = {key: value for key, value in SHAPE.items() if key not in ("head_dim", "sliding_window")}
    return DeepseekV2ForCausalLM(DeepseekV2Config(**{**shape, **latent, **experts, "num_key_value_heads": 6}))


MODELS = {"gemma 3": gemma, "mistral": mistral, "deepseek 2": deepseek}


@dataclass(frozen=True, slots=True)
class Served:
    """A model in a runner, with prompts and what must come of them."""

    family: Family
    runner: ModelRunner
    prompts: list[list[int]]
    want: list[list[int]]

    def core(self, folder: Path, **settings: Any) -> RealCore:
        values = {"at_once": ROWS, "chunk": 64, "blocks": 400, **settings}
        return RealCore(self.runner, engine_config(folder, dtype="fp32", max_requests=ROWS), Settings(**values))


@pytest.fixture(scope="module", params=MODELS.values(), ids=MODELS.keys())
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Served:
    family = random_family(request.param(), tmp_path_factory.mktemp("model"), seed=2)
    draw = torch.Generator().manual_seed(9)
    shared = torch.randint(0, 101, (38,), generator=draw).tolist()
    prompts = [torch.randint(0, 101, (length,), generator=draw).tolist() for length in (3, 21, 64)]
    prompts += [shared + torch.randint(0, 101, (length,), generator=draw).tolist() for length in (1, 9, 30)]
    want = []
    for prompt in prompts:
        tokens, margin = family.greedy(prompt, OUTPUTS)
        assert margin >= 1e-3, "choose another seed: rounding might change the answer"
        want.append(tokens)
    return Served(family, family.runner(rows=ROWS, block_tokens=BLOCK_TOKENS), prompts, want)


@pytest.mark.parametrize(("chunk", "overlap"), [(5, 1), (64, 0)])
def test_tokens_are_those_of_transformers(served: Served, tmp_path: Path, chunk: int, overlap: int) -> None:
    heard = served.core(tmp_path, chunk=chunk, overlap=overlap).generate(served.prompts, GREEDY)

    assert [one.tokens for one in heard] == served.want


@pytest.mark.parametrize(("chunk", "sizes"), [pytest.param(3, 3, marks=pytest.mark.long), (20, 5)])
def test_requests_packed_with_any_others_get_the_tokens_that_they_get_one_by_one(
    served: Served, tmp_path: Path, chunk: int, sizes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They join while others decode or compute prompts, and leave at steps of their own.

    The smaller the chunk, the more of the others end while a prompt is computed, so the fewer sizes a batch has.
    """
    plans: list[StepPlan] = []
    launch = served.runner.launch
    monkeypatch.setattr(served.runner, "launch", lambda plan: (plans.append(plan), launch(plan)))
    settings: dict[str, Any] = {"chunk": chunk, "prefix_cache": "disabled", "overlap": 1}
    alone = served.core(tmp_path, at_once=1, **settings).generate(served.prompts, GREEDY)
    assert all(len(plan.work) == 1 for plan in plans)
    plans.clear()
    packed = served.core(tmp_path, at_once=ROWS, join_after=2, **settings).generate(served.prompts * 3, GREEDY)

    assert [one.tokens for one in packed] == [one.tokens for one in alone] * 3 == served.want * 3
    lengths = [sorted(work.length for work in plan.work) for plan in plans]
    assert any(len(one) > 2 and one[0] == one[1] == 1 < one[-1] for one in lengths), "decode and prompts in one pass"
    assert len(set(map(len, lengths))) >= sizes, "batches of many sizes"


@pytest.mark.parametrize("index", ["radix", pytest.param("block-hash", marks=pytest.mark.long)])
def test_a_prefix_found_in_the_cache_changes_no_token(served: Served, tmp_path: Path, index: str) -> None:
    core = served.core(tmp_path, at_once=1, prefix_cache=index)
    first, second = (core.generate(served.prompts, GREEDY) for _ in range(2))

    assert [one.tokens for one in first] == [one.tokens for one in second] == served.want
    assert sum(one.cached_tokens for one in first) > 0, "three prompts share their beginning"
    assert all(one.cached_tokens >= 4 for one in second[1:])


@pytest.mark.parametrize("overlap", [pytest.param(0, marks=pytest.mark.long), 1])
def test_requests_that_are_preempted_come_back_with_the_same_tokens(
    served: Served, tmp_path: Path, overlap: int
) -> None:
    """A pool for little more than one of the longest at once."""
    groups = len(served.runner.facts.groups)
    core = served.core(tmp_path, at_once=24, chunk=16, overlap=overlap, blocks=groups * 128 // BLOCK_TOKENS)
    heard = core.generate(served.prompts * 4, GREEDY)

    assert [one.tokens for one in heard] == served.want * 4
    assert core.channel.stats is not None
    grows = any(group.window is None for group in served.runner.facts.groups)
    assert (core.channel.stats.preemptions_recompute_total > 0) == grows, "a row in a window needs no more as it grows"


@pytest.mark.parametrize("temperature", [pytest.param(0.0, marks=pytest.mark.long), 1.0])
def test_choices_share_a_prompt_and_go_their_own_ways(served: Served, tmp_path: Path, temperature: float) -> None:
    params = replace(GREEDY, temperature=temperature, seed=3, n=3)
    alone = served.core(tmp_path, at_once=1, prefix_cache="disabled").generate_choices(served.prompts, params)
    groups = len(served.runner.facts.groups)
    crowded = served.core(tmp_path, at_once=2, chunk=7, overlap=1, blocks=3 * groups * 128 // BLOCK_TOKENS)
    got = crowded.generate_choices(served.prompts, params)

    assert [[one.tokens for one in choices] for choices in got] == [
        [one.tokens for one in choices] for choices in alone
    ]
    if temperature == 0.0:
        assert [choices[0].tokens for choices in got] == served.want
    else:
        assert all(len({tuple(one.tokens) for one in choices}) == 3 for choices in got)


@pytest.mark.parametrize("width", [pytest.param(2, marks=pytest.mark.long), 4, 8])
def test_beams_find_what_a_search_over_whole_sequences_by_transformers_finds(
    served: Served, tmp_path: Path, width: int
) -> None:
    """Prompts of 21 and 39 tokens: alone and whole; then crowded, in small chunks, swapped out and planned ahead."""
    prompts = [served.prompts[1], served.prompts[3]]
    params = replace(GREEDY, n=width, beam=BeamParams(), stop_token_ids=STOPS, max_tokens=10)
    want = [plain_beam_search(served.family.logprobs_after, prompt, params) for prompt in prompts]
    groups = served.runner.facts.groups
    windowed = any(group.window is not None for group in groups)  # then beams may not share the prompt again
    few = len(groups) * max(32, 13 * width if windowed else 14 + 4 * width)
    crowded = {"at_once": 2, "chunk": 7, "overlap": 1, "blocks": few, "swap_slots": 400}

    for settings in ({"at_once": 1}, crowded):
        core = served.core(tmp_path, **settings)
        got = core.generate_choices(prompts, params)
        assert [[one.tokens for one in beams] for beams in got] == [[one.shown for one in found] for found in want]
    assert any(one.stopped for found in want for one in found)
