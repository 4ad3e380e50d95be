"""What an engine says is read as docs/contract.md has it, or not at all."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvik_operator.autoscale.parse import (
    MAX_BYTES,
    MAX_FIGURE,
    MIN_RATE,
    UnreadableAnswerError,
    parse_info,
    parse_load,
)
from kvik_operator.autoscale.types import EngineState

LOAD: dict[str, Any] = {
    "schema": 1,
    "state": "ready",
    "step": 81234,
    "kv_blocks_used": 512,
    "kv_blocks_total": 4096,
    "running": 7,
    "waiting": 2,
    "refused_total": 0,
    "waiting_prompt_tokens": 1800,
    "prefill_tokens_per_second": 950.5,
    "ttft_p90_seconds": None,
    "warm_since": "2026-05-01T12:00:00Z",
}
INFO: dict[str, Any] = {
    "schema": 1,
    "version": "0.1.0",
    "model": {"name": "smollm2", "revision": None, "digest": "sha256:00", "parameters": 134515008, "context": 8192},
    "dtype": "bf16",
    "quantization": "int8",
    "kv": {
        "key_dtype": "int8",
        "value_dtype": "int4",
        "bytes_per_token": 23040,
        "block_tokens": 16,
        "blocks_total": 728,
        "max_tokens": 11648,
    },
    "startup": {"model_fetched": None, "weights_loaded": "2026-05-01T11:59:52Z", "compiled": None, "warm": "nonsense"},
    "effective": {"max_requests": 32},
}


def body(answer: object) -> bytes:
    return json.dumps(answer).encode()


def test_a_reading_has_all_figures_and_the_time_it_was_taken() -> None:
    reading = parse_load(body(LOAD), 5.0)
    assert (reading.at, reading.state, reading.waiting, reading.kv_blocks_total) == (5.0, EngineState.READY, 2, 4096)
    assert reading.warm


def test_a_figure_that_decides_nothing_cannot_spoil_the_others() -> None:
    for nonsense in ("soon", -1, float("nan"), 10**400):
        reading = parse_load(body(LOAD | {"step": None, "ttft_p90_seconds": nonsense}), 0.0)
        assert (reading.waiting, reading.ttft_p90_seconds) == (2, None)
    assert parse_load(body(LOAD | {"ttft_p90_seconds": 0.41}), 0.0).ttft_p90_seconds == 0.41


@pytest.mark.parametrize(("said", "want"), [(True, True), (False, False), (None, None), (1, None), ("true", None)])
def test_only_true_and_false_say_anything_of_api_keys(said: object, want: bool | None) -> None:
    assert parse_load(body(LOAD | {"api_keys_outdated": said}), 0.0).api_keys_outdated is want
    assert parse_load(body(LOAD), 0.0).api_keys_outdated is None


def test_keys_of_a_newer_engine_are_ignored() -> None:
    assert parse_load(body(LOAD | {"gpu_temperature": 80}), 0.0).running == 7


@pytest.mark.parametrize("name", ["state", "kv_blocks_used", "waiting", "refused_total"])
def test_a_missing_figure_is_not_zero(name: str) -> None:
    with pytest.raises(UnreadableAnswerError, match=name):
        parse_load(body({key: value for key, value in LOAD.items() if key != name}), 0.0)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1, "3", True, [1], 10**400, -(10**400), 2**53 + 1])
def test_nan_and_nonsense_never_become_a_reading(value: object) -> None:
    """dynamo #6985, ray #64725; an integer beyond any float raises OverflowError where it is made one."""
    for name in ("waiting", "prefill_tokens_per_second"):
        with pytest.raises(UnreadableAnswerError, match=name):
            parse_load(body(LOAD | {name: value}), 0.0)


@pytest.mark.parametrize(
    "answer", [b"", b"nonsense", b"[]", b"null", b"[" * 4000, b" " * (MAX_BYTES + 1), body(LOAD | {"schema": 2})]
)
def test_what_is_not_the_contract_is_refused(answer: bytes) -> None:
    with pytest.raises(UnreadableAnswerError):
        parse_load(answer, 0.0)


@given(st.binary(max_size=200) | st.lists(st.none() | st.floats() | st.text(max_size=5), max_size=3).map(body))
def test_no_answer_raises_anything_else(answer: bytes) -> None:
    for parse in (lambda: parse_load(answer, 0.0), lambda: parse_info(answer)):
        with pytest.raises(UnreadableAnswerError):
            parse()


FIGURES = st.integers() | st.integers(0).map(lambda n: 10**n if n < 1000 else n) | st.floats()
JUNK = FIGURES | st.none() | st.booleans() | st.text(max_size=5) | st.lists(st.integers(), max_size=2)


@given(st.sampled_from(sorted(LOAD)), JUNK)
def test_a_reading_with_one_odd_figure_is_refused_or_within_bounds(name: str, value: object) -> None:
    try:
        reading = parse_load(body(LOAD | {name: value}), 0.0)
    except UnreadableAnswerError:
        return
    counts = (reading.kv_blocks_used, reading.kv_blocks_total, reading.running, reading.waiting)
    assert all(0 <= count <= MAX_FIGURE for count in (*counts, reading.refused_total, reading.waiting_prompt_tokens))
    assert reading.prefill_tokens_per_second is None or reading.prefill_tokens_per_second >= MIN_RATE


@given(st.sampled_from(["parameters", "context", "bytes_per_token", "max_tokens", "name", "version"]), JUNK)
def test_info_with_one_odd_figure_is_refused_or_within_bounds(name: str, value: object) -> None:
    odd = {name: value}
    try:
        info = parse_info(body({**INFO, **odd, "model": INFO["model"] | odd, "kv": INFO["kv"] | odd}))
    except UnreadableAnswerError:
        return
    counts = (info.parameters, info.context, info.kv_bytes_per_token, info.kv_max_tokens)
    assert all(count is None or 0 <= count <= MAX_FIGURE for count in counts)


@pytest.mark.parametrize("rate", [0, 5e-324, 1e-4])
def test_a_rate_that_measures_nothing_is_no_rate(rate: float) -> None:
    """A division by it would leave the range of floats."""
    assert parse_load(body(LOAD | {"prefill_tokens_per_second": rate}), 0.0).prefill_tokens_per_second is None


def test_info_is_read_with_its_times_in_utc() -> None:
    info = parse_info(body(INFO))
    assert (info.version, info.model_name, info.revision, info.parameters) == ("0.1.0", "smollm2", None, 134515008)
    assert (info.kv_key_dtype, info.kv_value_dtype) == ("int8", "int4")
    assert (info.kv_bytes_per_token, info.kv_max_tokens, info.context, info.dtype) == (23040, 11648, 8192, "bf16")
    assert info.startup["weights_loaded"] == datetime(2026, 5, 1, 11, 59, 52, tzinfo=UTC)
    assert info.startup["compiled"] is None
    assert info.startup["warm"] is None
