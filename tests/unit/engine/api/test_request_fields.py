"""Whatever a client writes into a request: it is taken or refused with a field's name, and nothing else happens."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvik_engine.api.completions import split_prompts
from kvik_engine.api.fitting import fit
from kvik_engine.api.sampling_fields import Sampling, ServedModel, resolve_sampling
from kvik_engine.api.schema import CONSTRAINED_OUTPUT, HARMLESS, ChatRequest, CompletionRequest, parse
from kvik_engine.errors import UserError
from tests.support import corpus

MODEL = ServedModel(vocab_size=258, stop_token_ids=(257,), slo_class=1, max_choices=6)
CONTEXT = 64
NUMBERS = st.one_of(
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([0, -1, 1, 1 << 31, 1 << 63, 1 << 64, 1e308, -0.0, 5e-324, True, False]),
)
VALUES = st.recursive(
    st.one_of(st.none(), st.text(max_size=20), NUMBERS),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=8), inner, max_size=4)),
    max_leaves=8,
)
CHAT_FIELDS = [f for f in ChatRequest.__struct_fields__ if f != "messages"]
COMPLETION_FIELDS = list(CompletionRequest.__struct_fields__)


def resolve(request: ChatRequest | CompletionRequest) -> Sampling:
    return resolve_sampling(request, MODEL, max_tokens=("max_tokens", request.max_tokens), logprobs=None)


def check(sampling: Sampling) -> None:
    """What the core may rely on."""
    p = sampling.params
    assert 1 <= p.n <= MODEL.max_choices
    assert p.max_tokens >= 1
    assert sampling.seed is None or 0 <= sampling.seed < 1 << 64
    assert p.temperature == 0 or 0.01 <= p.temperature <= 2
    assert 0 < p.top_p <= 1
    assert 0 <= p.min_p <= 1
    assert p.top_k is None or p.top_k >= 1
    assert all(math.isfinite(x) for x in (p.presence_penalty, p.frequency_penalty, p.repetition_penalty))
    assert p.repetition_penalty > 0
    assert all(0 <= t < MODEL.vocab_size and -100 <= b <= 100 for t, b in p.logit_bias)
    assert all(0 <= t < MODEL.vocab_size for t in p.stop_token_ids)
    assert sampling.slo_class in (1, 2)
    assert -100 <= sampling.priority <= 100


def taken_or_refused(call: Callable[[], Sampling]) -> Sampling | UserError:
    """Anything but UserError escapes and fails the test."""
    try:
        return call()
    except UserError as error:
        return error


def first_name(param: str) -> str:
    return param.partition(".")[0].partition("[")[0]


@given(st.dictionaries(st.sampled_from(CHAT_FIELDS), VALUES, max_size=6))
def test_any_chat_is_taken_or_refused_by_a_field(fields: dict[str, Any]) -> None:
    body = json.dumps({"messages": [{"role": "user", "content": "a"}]} | fields).encode()
    result = taken_or_refused(lambda: resolve(parse(body, ChatRequest)))
    if isinstance(result, UserError):
        assert result.message
        assert result.param is None or first_name(result.param) in fields, result.param
    else:
        check(result)


@given(st.dictionaries(st.sampled_from(COMPLETION_FIELDS), VALUES, max_size=6))
def test_any_completion_is_taken_or_refused_by_a_field(fields: dict[str, Any]) -> None:
    def call() -> Sampling:
        request = parse(json.dumps(fields).encode(), CompletionRequest)
        assert split_prompts(request.prompt)
        return resolve(request)

    result = taken_or_refused(call)
    if isinstance(result, UserError):
        assert result.param is None or first_name(result.param) in [*fields, "prompt"], result.param
    else:
        check(result)


@given(st.binary(max_size=60))
def test_any_bytes_are_taken_or_refused(body: bytes) -> None:
    for kind in (ChatRequest, CompletionRequest):
        try:
            parse(body, kind)
        except UserError:
            continue
        msgspec.json.decode(body)


@given(st.integers(0, 80), st.one_of(st.none(), st.integers(1, 80)), st.sampled_from([None, 16]))
def test_a_fitted_request_never_exceeds_the_context(length: int, wanted: int | None, default: int | None) -> None:
    fields = {"messages": [], "max_tokens": wanted}
    sampling = resolve(parse(json.dumps(fields).encode(), ChatRequest))
    try:
        prompt = fit([1] * length, sampling, CONTEXT, param="prompt", default=default)
    except UserError:
        assert length == 0 or length + (wanted or 1) > CONTEXT
        return
    assert length + prompt.params.max_tokens <= CONTEXT
    assert prompt.params.max_tokens == (wanted or (CONTEXT - length if default is None else min(16, CONTEXT - length)))


@pytest.mark.parametrize("field", HARMLESS)
def test_every_unsupported_field_belongs_to_a_request(field: str) -> None:
    """Else it would be ignored silently, as an unknown one."""
    assert field in CHAT_FIELDS or field in COMPLETION_FIELDS


def test_every_way_to_constrain_the_output_is_tried_on_both_paths() -> None:
    assert {field for field, _ in corpus.CONSTRAINTS} == set(CONSTRAINED_OUTPUT)
    assert set(CONSTRAINED_OUTPUT) <= {*CHAT_FIELDS} & {*COMPLETION_FIELDS}
