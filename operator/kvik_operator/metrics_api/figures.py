"""The metrics that are served, and what each is of a pod and of a pool. Pure.

Of a pod that is silent nothing is said. A pool's sums take it for an average one of those that were heard, so that
silence neither looks like less work nor stops an autoscaler; of a pool that nobody was heard of, nothing is said.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kvik_operator.autoscale.load import FRESH_SECONDS, predicted_ttft, speaks
from kvik_operator.autoscale.types import LoadReading, PodSample

Combine = Callable[[Sequence[float], int], float]
"""From the pods' values, at least one, and the number of pods that should have one, to the pool's."""


@dataclass(frozen=True, slots=True)
class Metric:
    """`of_pod` None: it is said of pools only. `window`: seconds that it looks back over; None: it is of the moment."""

    name: str
    of_pod: Callable[[LoadReading], float | None] | None
    combine: Combine | None
    window: int | None = None


@dataclass(frozen=True, slots=True)
class Figure:
    """A metric's value and how old it is, in seconds."""

    value: float
    age: float


def _utilization(reading: LoadReading) -> float | None:
    return reading.kv_blocks_used / reading.kv_blocks_total if reading.kv_blocks_total > 0 else None


def _mean(values: Sequence[float], pods: int) -> float:
    return sum(values) / len(values)


def _sum(values: Sequence[float], pods: int) -> float:
    return sum(values) / len(values) * max(pods, len(values))


def _worst(values: Sequence[float], pods: int) -> float:
    """Percentiles of several pods have no mean."""
    return max(values)


DESIRED_REPLICAS: Final = Metric("kvik_desired_replicas", None, None)
METRICS: Final[Mapping[str, Metric]] = {
    metric.name: metric
    for metric in (
        DESIRED_REPLICAS,
        Metric("kvik_kv_cache_utilization", _utilization, _mean),
        Metric("kvik_predicted_ttft_seconds", predicted_ttft, _mean),
        Metric("kvik_requests_waiting", lambda reading: float(reading.waiting), _sum),
        Metric("kvik_ttft_p90_seconds", lambda reading: reading.ttft_p90_seconds, _worst, window=60),
    )
}


def pod_figure(metric: Metric, sample: PodSample, now: float) -> Figure | None:
    """None: it is not warm, silent, or says nothing of this. `now` is of the clock of the readings."""
    reading = sample.readings[0] if sample.readings else None
    if metric.of_pod is None or reading is None or not reading.warm or now - reading.at > FRESH_SECONDS:
        return None
    value = metric.of_pod(reading)
    return None if value is None else Figure(value, now - reading.at)


def pool_figure(metric: Metric, samples: Sequence[PodSample], now: float) -> Figure | None:
    """Of all but DESIRED_REPLICAS, which is a decision and not a reading."""
    heard = [figure for sample in samples if (figure := pod_figure(metric, sample, now)) is not None]
    if not heard or metric.combine is None:
        return None
    silent = sum(sample.expected and not speaks(sample, now) for sample in samples)
    value = metric.combine([figure.value for figure in heard], len(heard) + silent)
    return Figure(value, max(figure.age for figure in heard))
