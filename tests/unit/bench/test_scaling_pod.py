"""The simulated engine pod on which ways to scale are compared."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.scaling.pod import PodModel, Request, SimulatedPod

MODEL = PodModel(
    prefill_tokens_per_second=1000.0,
    step_seconds=0.02,
    row_seconds=0.01,
    chunk_tokens=100,
    kv_tokens=4000,
    max_requests=4,
    max_queued=8,
    startup_seconds=30.0,
)


def served(*requests: Request, model: PodModel = MODEL) -> SimulatedPod:
    """A pod after all of them."""
    pod = SimulatedPod("pod", model, 0.0)
    for request in requests:
        pod.submit(request)
    pod.advance(10_000.0)
    assert pod.idle
    return pod


def test_a_request_alone_takes_its_prefill_and_a_step_for_each_further_token() -> None:
    request = Request(5.0, prompt_tokens=500, output_tokens=11)
    served(request)
    assert request.ttft == pytest.approx(0.5)
    assert request.ended_at == pytest.approx(5.5 + 10 * 0.03)


def test_a_prompt_that_comes_while_rows_decode_gets_a_chunk_a_step() -> None:
    first, second = Request(0.0, 100, 1000), Request(1.0, 500, 2)
    served(first, second)
    step = 0.02 + 0.01 + 100 / 1000
    assert second.ttft == pytest.approx(5 * step)


def test_a_request_waits_for_a_row() -> None:
    requests = [Request(0.0, 10, 101) for _ in range(4)] + [Request(0.1, 10, 2)]
    served(*requests)
    first_end = min(request.ended_at or math.inf for request in requests[:4])
    assert (requests[4].first_token_at or 0) > first_end


def test_a_request_waits_for_kv() -> None:
    """Two prompts of 3,000 tokens do not fit a cache of 4,000."""
    first, second = Request(0.0, 3000, 50), Request(0.0, 3000, 2)
    served(first, second)
    assert (second.first_token_at or 0) > (first.ended_at or math.inf)


def test_answers_that_outgrow_the_cache_are_preempted_and_end_all_the_same() -> None:
    first, second = Request(0.0, 1500, 1000), Request(0.0, 1500, 1000)
    served(first, second)
    assert first.ended_at is not None
    assert second.ended_at is not None
    alone = 2 * 1.5 + 999 * 0.04
    assert second.ended_at > alone + 1.5  # its prompt was computed twice


def test_a_full_queue_refuses_and_says_so() -> None:
    requests = [Request(0.0, 100, 50) for _ in range(20)]
    pod = served(*requests)
    refused = [request for request in requests if request.refused]
    assert len(refused) == 20 - 4 - 8
    assert pod.report().refused_total == len(refused)


def test_a_client_that_leaves_the_queue_gets_nothing() -> None:
    requests = [Request(0.0, 100, 2000) for _ in range(4)] + [Request(0.0, 100, 10, patience=3.0)]
    served(*requests)
    assert requests[4].ttft is None
    assert requests[4].ended_at is not None


def test_a_client_whose_answer_has_begun_stays_though_its_request_is_preempted() -> None:
    requests = [Request(0.0, 1500, 1000, patience=5.0) for _ in range(2)]
    served(*requests)
    assert all((request.ended_at or 0) > 999 * MODEL.step_seconds for request in requests)


def test_the_report_tells_what_is_held_and_what_waits() -> None:
    pod = SimulatedPod("pod", MODEL, 0.0)
    for _ in range(6):
        pod.submit(Request(0.0, 400, 100))
    pod.advance(0.2)
    report = pod.report()
    assert (report.running, report.waiting) == (4, 2)
    assert report.kv == pytest.approx(1600 / 4000)
    assert report.waiting_prompt_tokens == 6 * 400 - 200
    assert report.prefill_tokens_per_second == 1000.0
    assert report.mean_ttft is None


def test_the_mean_ttft_forgets_what_is_older_than_a_minute() -> None:
    pod = SimulatedPod("pod", MODEL, 0.0)
    pod.submit(Request(0.0, 500, 2))
    pod.advance(10.0)
    assert pod.report().mean_ttft == pytest.approx(0.5)
    pod.advance(100.0)
    assert pod.report().mean_ttft is None


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.floats(0, 20), st.integers(1, 3900), st.integers(1, 3000), st.sampled_from([1.0, math.inf])),
        min_size=1,
        max_size=30,
    )
)
def test_whatever_comes_every_request_ends_once_and_the_cache_is_empty_then(
    drawn: list[tuple[float, int, int, float]],
) -> None:
    requests = [Request(at, prompt, output, patience) for at, prompt, output, patience in sorted(drawn)]
    pod = SimulatedPod("pod", MODEL, 0.0)
    for request in requests:
        pod.submit(request)
        assert 0 <= pod.report().kv <= 1
    pod.advance(1e6)
    assert pod.idle
    assert pod.report().kv_tokens_used == 0
    for request in requests:
        assert request.refused == (request.ended_at is None)
        if request.first_token_at is not None:
            assert request.at <= request.first_token_at <= (request.ended_at or -1)
