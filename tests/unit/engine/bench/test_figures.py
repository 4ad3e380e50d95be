"""The figures of a run from what its requests saw."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvik_engine.bench.figures import Answer, Failure, Slo, Spread, figures, percentile

SECONDS = st.lists(st.floats(0, 1e4, allow_subnormal=False), min_size=1, max_size=200)


def answer(sent: float, first: float, ended: float, tokens: int, *gaps: float, prompt: int | None = 10) -> Answer:
    return Answer(sent, first, ended, gaps, tokens, prompt)


@given(SECONDS, st.floats(0, 1))
def test_a_percentile_is_numpys(values: list[float], fraction: float) -> None:
    ordered = sorted(values)
    want = float(np.percentile(np.array(ordered), 100 * fraction))
    assert percentile(ordered, fraction) == pytest.approx(want, rel=1e-6, abs=1e-6)


@given(SECONDS)
def test_percentiles_ascend_within_what_there_was_and_do_not_ask_for_an_order(values: list[float]) -> None:
    spread = Spread.of(values)
    assert spread is not None
    assert min(values) <= spread.p50 <= spread.p90 <= spread.p99 <= max(values)
    assert spread == Spread.of(values[::-1])
    assert spread.mean == pytest.approx(math.fsum(values) / len(values))


@given(st.floats(0, 1e4), st.integers(1, 50))
def test_equal_values_are_every_percentile(value: float, count: int) -> None:
    spread = Spread.of([value] * count)
    assert spread is not None
    assert (spread.p50, spread.p90, spread.p99) == (value, value, value)


def test_each_latency_is_what_its_definition_says() -> None:
    found = figures([answer(10.0, 10.5, 12.5, 5, 0.5, 0.5, 0.5, 0.5)], Slo())
    for spread, want in ((found.ttft, 0.5), (found.e2e, 2.5), (found.tpot, 0.5), (found.itl, 0.5)):
        assert spread is not None
        assert spread.mean == pytest.approx(want)


def test_time_per_token_counts_requests_and_time_between_tokens_counts_gaps() -> None:
    """Two populations: one value a request, and all gaps of all requests together."""
    found = figures([answer(0, 1, 2, 2, 1.0), answer(0, 1, 2, 11, *[0.1] * 10)], Slo())
    assert found.tpot is not None
    assert found.itl is not None
    assert found.tpot.mean == pytest.approx((1.0 + 0.1) / 2)
    assert found.itl.mean == pytest.approx(2.0 / 11)


def test_tokens_that_came_in_one_event_make_no_gap_and_still_count() -> None:
    found = figures([answer(0, 1, 3, 9, 2.0)], Slo())
    assert found.tpot is not None
    assert found.tpot.mean == pytest.approx(2.0 / 8)
    assert found.output_tokens == 9


def test_one_token_has_no_time_per_token_and_meets_any_bound_on_it() -> None:
    found = figures([answer(0, 1, 1, 1)], Slo(ttft=1.0, tpot=0.001))
    assert found.tpot is None
    assert found.goodput == pytest.approx(1.0)


def test_rates_are_over_the_time_from_the_first_request_to_the_last_answer() -> None:
    found = figures([answer(5, 6, 9, 30), answer(7, 8, 15, 50)], Slo())
    assert (found.seconds, found.completed) == (10.0, 2)
    assert found.requests_per_second == pytest.approx(0.2)
    assert found.output_tokens_per_second == pytest.approx(8.0)
    assert found.total_tokens_per_second == pytest.approx(10.0)
    assert found.goodput is None


def test_goodput_wants_every_bound_met() -> None:
    results = [answer(0, 0.4, 1.0, 7), answer(0, 0.6, 1.0, 7), answer(0, 0.4, 10.0, 7)]
    found = figures(results, Slo(ttft=0.5, tpot=0.2))
    assert found.goodput == pytest.approx(1 / 10)


def test_failed_requests_are_counted_by_kind_and_are_in_no_latency_and_no_throughput() -> None:
    failures = [Failure("HTTP 429", "the queue is full", 0, 0.001), Failure("HTTP 429", "again", 1, 1.001)]
    found = figures([answer(0, 1, 4, 4), *failures, Failure("timed out", "", 0, 8)], Slo(ttft=5))
    assert found.failed == {"HTTP 429": 2, "timed out": 1}
    assert found.examples["HTTP 429"] == "the queue is full"
    assert (found.completed, found.output_tokens, found.seconds) == (1, 4, 8)
    assert found.ttft is not None
    assert found.ttft.mean == pytest.approx(1.0)
    assert found.goodput == pytest.approx(1 / 8)


def test_a_run_in_which_everything_failed_has_no_latencies() -> None:
    found = figures([Failure("no connection", "refused", 0, 0)], Slo())
    assert (found.completed, found.ttft, found.itl, found.requests_per_second) == (0, None, None, 0)
    assert (found.prompt_tokens, found.output_tokens, found.total_tokens_per_second) == (0, 0, 0)


def test_prompt_tokens_are_unknown_once_one_answer_did_not_say() -> None:
    found = figures([answer(0, 1, 2, 2), answer(0, 1, 2, 2, prompt=None)], Slo())
    assert (found.prompt_tokens, found.total_tokens_per_second) == (None, None)
