"""The best of several candidates: best_of and beam search, as clients see them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvik_engine.api.ranking import best
from kvik_engine.api.sampling_fields import Sampling, ServedModel, resolve_sampling
from kvik_engine.api.schema import CompletionRequest
from kvik_engine.ipc.messages import Submit
from kvik_engine.params import BeamParams, EarlyStopping
from tests.support.live_api import LiveApi

MODEL = ServedModel(vocab_size=258, stop_token_ids=(257,), slo_class=1, max_choices=8)
LENGTHS = (5, 3, 9, 4)
"""Of the candidates; the API's end token is one more."""
LOGPROBS = (-0.5, -0.2, -0.1, -0.9)


def resolve(logprobs: int | None = None, **fields: Any) -> Sampling:
    return resolve_sampling(CompletionRequest(**fields), MODEL, max_tokens=("max_tokens", 16), logprobs=logprobs)


def candidate(submit: Submit, choice: int) -> bytes:
    return bytes([ord("a") + choice]) * LENGTHS[choice]


@pytest.fixture
def four(api: LiveApi) -> LiveApi:
    """Candidates a, b, c and d; per token c is the likeliest, then b, a and d."""
    api.core.replies, api.core.logprob = candidate, lambda choice: LOGPROBS[choice]
    return api


async def test_the_best_by_log_probability_per_token_come_first(four: LiveApi) -> None:
    """OpenAI's reference: "the one with the highest log probability per token"."""
    reply = await four.complete(best_of=4, n=2)
    choices = reply.json["choices"]
    assert [(choice["index"], choice["text"]) for choice in choices] == [(0, "c" * 9), (1, "b" * 3)]
    assert [choice["logprobs"] for choice in choices] == [None, None]
    assert four.core.submits[0].params.n == 4


async def test_every_candidate_is_billed(four: LiveApi) -> None:
    usage = (await four.complete(best_of=4)).json["usage"]
    assert usage["completion_tokens"] == sum(LENGTHS) + 4


async def test_a_chat_has_best_of_too(four: LiveApi) -> None:
    choices = (await four.chat(best_of=3, n=1, logprobs=True)).json["choices"]
    assert [choice["message"]["content"] for choice in choices] == ["c" * 9]
    assert {entry["logprob"] for entry in choices[0]["logprobs"]["content"]} == {-0.1}


async def test_each_prompt_has_its_own_best(four: LiveApi) -> None:
    four.core.replies = lambda submit, choice: bytes([submit.prompt[0]]) + candidate(submit, choice)
    choices = (await four.complete(prompt=["x", "y"], add_special_tokens=False, best_of=4, n=2)).json["choices"]
    assert [(choice["index"], choice["text"][:2]) for choice in choices] == [(0, "xc"), (1, "xb"), (2, "yc"), (3, "yb")]


async def test_a_candidate_that_a_stop_string_cuts_is_ranked_by_what_is_left(four: LiveApi) -> None:
    four.core.logprob = lambda choice: -0.5
    four.core.replies = lambda submit, choice: b"stop here" if choice == 2 else b"go on"
    choices = (await four.complete(best_of=3, n=3, stop=[" here"])).json["choices"]
    assert [choice["text"] for choice in choices] == ["go on", "go on", "stop"]


async def test_without_best_of_choices_keep_their_order(four: LiveApi) -> None:
    choices = (await four.complete(n=4)).json["choices"]
    assert [choice["text"][0] for choice in choices] == ["a", "b", "c", "d"]
    assert four.core.submits[0].params.logprobs is None


async def test_beams_come_back_ranked_with_their_length_penalty(four: LiveApi) -> None:
    """Without it the sum counts: b has -0.8, c -1.0, a -3.0 and d -4.5."""
    reply = await four.complete(use_beam_search=True, best_of=4, n=2, length_penalty=0.0, early_stopping=True)
    assert [choice["text"][0] for choice in reply.json["choices"]] == ["b", "c"]
    params = four.core.submits[0].params
    assert params.beam == BeamParams(length_penalty=0.0, early_stopping=EarlyStopping.COMPLETE)
    assert (params.n, params.temperature, params.logprobs) == (4, 0.0, 0)


async def test_stop_strings_go_to_the_core_with_a_search_only(four: LiveApi) -> None:
    """There they end a beam; the answer that comes back is cut here, as any."""
    four.core.replies = lambda submit, choice: b"ab. and" if choice == 1 else b"abc"
    choices = (await four.complete(use_beam_search=True, n=2, stop=[". ", "x"])).json["choices"]
    await four.complete(n=2, stop=["x"])
    searched, sampled = (submit.params for submit in four.core.submits)
    assert searched.beam == BeamParams(stop=(". ", "x"))
    assert sampled.beam is None
    assert {choice["text"] for choice in choices} == {"ab", "abc"}


async def test_n_is_the_width_of_a_search_without_best_of(four: LiveApi) -> None:
    reply = await four.chat(use_beam_search=True, n=3)
    assert len(reply.json["choices"]) == 3
    assert four.core.submits[0].params.n == 3


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        (None, EarlyStopping.LIKELY),
        (False, EarlyStopping.LIKELY),
        (True, EarlyStopping.COMPLETE),
        ("never", EarlyStopping.SURE),
    ],
)
def test_early_stopping_has_the_values_that_users_know(said: bool | str | None, meant: EarlyStopping) -> None:
    beam = resolve(use_beam_search=True, early_stopping=said).params.beam
    assert beam is not None
    assert beam.early_stopping is meant


def test_log_probabilities_are_computed_for_ranking_and_shown_only_if_asked() -> None:
    for fields in ({"best_of": 2}, {"use_beam_search": True}):
        assert (resolve(**fields).logprobs, resolve(**fields).params.logprobs) == (None, 0)
        assert (resolve(3, **fields).logprobs, resolve(3, **fields).params.logprobs) == (3, 3)
    assert (resolve(best_of=2, n=2).logprobs, resolve(best_of=2, n=2).params.logprobs) == (None, None)


@given(st.lists(st.tuples(st.floats(-1e6, 0), st.integers(1, 99)), min_size=1), st.integers(1, 8))
def test_the_best_are_the_best(candidates: list[tuple[float, int]], wanted: int) -> None:
    chosen = best(candidates, wanted, 1.0)
    per_token = [logprob / tokens for logprob, tokens in candidates]
    assert len(chosen) == len(set(chosen)) == min(wanted, len(candidates))
    assert [per_token[place] for place in chosen] == sorted(per_token, reverse=True)[:wanted]
