"""What each metric is of a pod and of a pool, and that missing is never zero."""

from dataclasses import replace

import pytest

from kvik_operator.autoscale.types import EngineState, LoadReading, PodSample
from kvik_operator.metrics_api.figures import DESIRED_REPLICAS, METRICS, Figure, pod_figure, pool_figure

NOW = 100.0
READING = LoadReading(98.0, EngineState.READY, 250, 1000, 1, 4, 0, 500, 1000.0, "2026-01-01T00:00:00Z", 0.125)


def sample(
    uid: str = "a", *, expected: bool = True, reading: LoadReading | None = READING, **changes: object
) -> PodSample:
    readings = () if reading is None else (replace(reading, **changes),)  # type: ignore[arg-type]
    return PodSample(uid, expected, readings)


def of_pool(name: str, *samples: PodSample) -> float | None:
    figure = pool_figure(METRICS[name], samples, NOW)
    return None if figure is None else figure.value


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("kvik_kv_cache_utilization", 0.25),
        ("kvik_predicted_ttft_seconds", 0.5),
        ("kvik_requests_waiting", 4.0),
        ("kvik_ttft_p90_seconds", 0.125),
    ],
)
def test_a_pod_has_what_its_engine_said(name: str, value: float) -> None:
    assert pod_figure(METRICS[name], sample(), NOW) == Figure(value, 2.0)


def test_replicas_are_no_metric_of_a_pod() -> None:
    assert pod_figure(DESIRED_REPLICAS, sample(), NOW) is None


def test_a_pool_has_means_of_ratios_sums_of_queues_and_the_worst_percentile() -> None:
    other = sample("b", kv_blocks_used=750, waiting=2, waiting_prompt_tokens=1500, ttft_p90_seconds=2.0)
    assert of_pool("kvik_kv_cache_utilization", sample(), other) == 0.5
    assert of_pool("kvik_predicted_ttft_seconds", sample(), other) == 1.0
    assert of_pool("kvik_requests_waiting", sample(), other) == 6.0
    assert of_pool("kvik_ttft_p90_seconds", sample(), other) == 2.0


def test_a_silent_pod_counts_as_an_average_one_in_a_sum() -> None:
    """An autoscaler that saw the queue shrink with every pod that stops answering would take pods away."""
    assert of_pool("kvik_requests_waiting", sample(), sample("b", reading=None)) == 8.0
    assert of_pool("kvik_requests_waiting", sample(), sample("b", at=80.0)) == 8.0
    assert of_pool("kvik_kv_cache_utilization", sample(), sample("b", reading=None)) == 0.25


def test_a_pod_that_still_starts_or_drains_counts_as_none() -> None:
    starting = sample("b", expected=False, state=EngineState.STARTING, warm_since=None)
    draining = sample("c", state=EngineState.DRAINING)
    assert of_pool("kvik_requests_waiting", sample(), starting, draining) == 4.0


@pytest.mark.parametrize("name", METRICS)
def test_without_a_fresh_reading_there_is_no_value(name: str) -> None:
    assert of_pool(name) is None
    assert of_pool(name, sample(at=84.0)) is None
    assert of_pool(name, sample(warm_since=None)) is None


def test_what_an_engine_does_not_say_is_absent() -> None:
    assert of_pool("kvik_ttft_p90_seconds", sample(ttft_p90_seconds=None)) is None
    assert of_pool("kvik_predicted_ttft_seconds", sample(prefill_tokens_per_second=None)) is None
    assert of_pool("kvik_kv_cache_utilization", sample(kv_blocks_total=0)) is None
    one_says = [sample(ttft_p90_seconds=None), sample("b")]
    assert of_pool("kvik_ttft_p90_seconds", *one_says) == 0.125
