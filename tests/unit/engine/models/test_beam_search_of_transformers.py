"""Beam search through the engine core against transformers' own `generate(num_beams=...)`, on one random model.

Equal are answers, their order and their scores: length penalty (per output token, the one that ended it included), the
three kinds of early stopping, end tokens, least and most tokens. docs/api.md says where the two differ.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, StoppingCriteria, StoppingCriteriaList

from kvik_engine.ipc.messages import FinishReason
from kvik_engine.params import BeamParams, EarlyStopping, SamplingParams, score
from tests.support.random_family import Family, random_family
from tests.support.real_core import RealCore, Settings, engine_config

BLOCK_TOKENS, OUTPUTS = 4, 10
STOPS = tuple(range(1, 101, 3))
PROMPTS = [[(number * 37 + i * 11) % 101 for i in range(3 + 5 * number)] for number in (0, 3)]
THEIRS: dict[EarlyStopping, bool | str] = {
    EarlyStopping.COMPLETE: True,
    EarlyStopping.LIKELY: False,
    EarlyStopping.SURE: "never",
}


@dataclass(frozen=True, slots=True)
class Answer:
    """Without the token that ended it."""

    tokens: list[int]
    stopped: bool


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory) -> Family:
    shape: dict[str, Any] = {
        "vocab_size": 101,
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 2,
        "num_attention_heads": 6,
        "num_key_value_heads": 3,
        "max_position_embeddings": 64,
    }
    config = LlamaConfig(**shape, bos_token_id=None, eos_token_id=None, pad_token_id=None)
    return random_family(LlamaForCausalLM(config), tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def core(family: Family, tmp_path_factory: pytest.TempPathFactory) -> RealCore:
    runner = family.runner(rows=12, block_tokens=BLOCK_TOKENS)
    config = engine_config(tmp_path_factory.mktemp("core"), dtype="fp32", max_requests=12)
    return RealCore(runner, config, Settings(at_once=2, chunk=64, blocks=400, overlap=1), spell)


def spell(token: int) -> bytes:
    """Letters, so that texts have stop strings in them."""
    return bytes([97 + token % 7, 97 + token % 5])


class StopsAt(StoppingCriteria):  # type: ignore[misc]
    """Ends a beam at a stop string behind the prompt, as transformers' own `stop_strings` does for a tokenizer's
    tokens."""

    def __init__(self, stops: tuple[str, ...], behind: int) -> None:
        self._stops = [stop.encode() for stop in stops]
        self._behind = behind

    def __call__(self, ids: torch.Tensor, scores: torch.Tensor, **_: Any) -> torch.Tensor:
        return torch.tensor([self.ended(tokens) for tokens in ids.tolist()])

    def ended(self, tokens: list[int]) -> bool:
        *before, last = map(spell, tokens[self._behind :])
        text = b"".join(before)
        return any((text + last).rfind(stop) > text.rfind(stop) for stop in self._stops)


def by_transformers(family: Family, prompt: list[int], params: SamplingParams) -> tuple[list[Answer], list[float]]:
    """The answers, best first, and their scores."""
    assert params.beam is not None
    criterion = StopsAt(params.beam.stop, len(prompt))
    done = family.theirs.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        num_beams=params.n,
        num_return_sequences=params.n,
        do_sample=False,
        max_new_tokens=params.max_tokens,
        min_new_tokens=params.min_tokens,
        eos_token_id=list(params.stop_token_ids) or None,
        pad_token_id=STOPS[0],
        stopping_criteria=StoppingCriteriaList([criterion]),
        length_penalty=params.beam.length_penalty,
        early_stopping=THEIRS[params.beam.early_stopping],
        return_dict_in_generate=True,
        output_scores=True,
    )
    answers = []
    for sequence in done.sequences[:, len(prompt) :].tolist():
        ends = [place for place, token in enumerate(sequence) if token in params.stop_token_ids]
        tokens = sequence[: ends[0]] if ends else sequence
        answers.append(Answer(tokens, bool(ends) or criterion.ended([*prompt, *tokens])))
    return answers, done.sequences_scores.tolist()


def check(family: Family, core: RealCore, params: SamplingParams) -> list[Answer]:
    """All prompts by both; returns the answers."""
    every: list[Answer] = []
    for prompt, heard in zip(PROMPTS, core.generate_choices(PROMPTS, params), strict=True):
        want, scores = by_transformers(family, prompt, params)
        got = [Answer(one.tokens, one.finish is FinishReason.STOP) for one in heard]
        assert got == want
        assert params.beam is not None
        ours = [score(one.logprob, len(one.tokens) + one.stop_tokens, params.beam.length_penalty) for one in heard]
        assert all(math.isclose(a, b, rel_tol=1e-4) for a, b in zip(ours, scores, strict=True)), (ours, scores)
        every += got
    return every


def beams(width: int, *, early: EarlyStopping, penalty: float, **params: Any) -> SamplingParams:
    beam = BeamParams(length_penalty=penalty, early_stopping=early, stop=params.pop("stop", ()))
    defaults = {"max_tokens": OUTPUTS, "seed": 0, "temperature": 0.0, "stop_token_ids": STOPS, "logprobs": 0}
    return SamplingParams(**{**defaults, "n": width, "beam": beam, **params})


@pytest.mark.parametrize("early", EarlyStopping)
@pytest.mark.parametrize("penalty", [-1.0, 0.0, 1.0, 2.0])
@pytest.mark.parametrize("width", [3, *(pytest.param(width, marks=pytest.mark.long) for width in (2, 6))])
def test_answers_order_and_scores_equal_those_of_transformers(
    family: Family, core: RealCore, width: int, penalty: float, early: EarlyStopping
) -> None:
    answers = check(family, core, beams(width, early=early, penalty=penalty))
    assert any(one.stopped for one in answers)


@pytest.mark.parametrize("early", EarlyStopping)
@pytest.mark.parametrize("width", [2, 3])
def test_a_stop_string_ends_a_beam_as_in_transformers(
    family: Family, core: RealCore, width: int, early: EarlyStopping
) -> None:
    stops = ("aa", "bcd", "ede")
    answers = check(family, core, beams(width, early=early, penalty=1.0, stop=stops, stop_token_ids=STOPS[:3]))
    assert any(one.stopped for one in answers)


@pytest.mark.parametrize("least", [1, 5, OUTPUTS])
def test_no_answer_ends_before_the_least_tokens_as_in_transformers(family: Family, core: RealCore, least: int) -> None:
    answers = check(family, core, beams(3, early=EarlyStopping.LIKELY, penalty=1.0, min_tokens=least))
    assert all(len(one.tokens) >= least for one in answers)


def test_without_end_tokens_all_answers_are_as_long_as_they_may_be_as_in_transformers(
    family: Family, core: RealCore
) -> None:
    answers = check(family, core, beams(4, early=EarlyStopping.SURE, penalty=1.0, stop_token_ids=()))
    assert {len(one.tokens) for one in answers} == {OUTPUTS}
