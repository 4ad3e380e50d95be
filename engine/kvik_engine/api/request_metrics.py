"""What the API process measures of requests, as Prometheus histograms and counters, and the recent TTFTs for /load."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics

TTFT_BUCKETS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
TOKEN_BUCKETS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
E2E_BUCKETS = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
TTFT_WINDOW_SECONDS = 60.0
_TTFT_WINDOW_SAMPLES = 4096


@dataclass(frozen=True, slots=True)
class TtftTarget:
    """Seconds within which requests of a class should get their first token. Those of a lower class have no target."""

    seconds: float
    slo_class: int


class RequestMetrics:
    """Written by the event loop, read by the probe thread. Every series carries model_name."""

    def __init__(
        self, model_name: str, clock: Callable[[], float] = time.monotonic, *, slo: TtftTarget | None = None
    ) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self._clock = clock
        self._recent: deque[tuple[float, float]] = deque(maxlen=_TTFT_WINDOW_SAMPLES)

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            made = Histogram(name, text, ["model_name"], buckets=buckets, registry=self.registry)
            return made.labels(model_name)

        self._ttft = histogram(
            "kvik_time_to_first_token_seconds", "From the request's arrival to its first token.", TTFT_BUCKETS
        )
        self._tpot = histogram(
            "kvik_time_per_output_token_seconds", "Mean time per token after the first, per choice.", TOKEN_BUCKETS
        )
        self._itl = histogram("kvik_inter_token_latency_seconds", "Each gap between tokens.", TOKEN_BUCKETS)
        self._e2e = histogram("kvik_e2e_request_latency_seconds", "From arrival to the last token.", E2E_BUCKETS)
        self._finished = Counter(
            "kvik_requests",
            "Choices that ended, by how: stop, length, aborted, error.",
            ["model_name", "finish_reason"],
            registry=self.registry,
        )
        self._model_name = model_name
        self._goodput = None if slo is None else _Goodput(slo, model_name, self.registry)

    def first_token(self, seconds: float) -> None:
        self._ttft.observe(seconds)
        self._recent.append((self._clock(), seconds))

    def token_gap(self, seconds: float, tokens: int) -> None:
        """`tokens` tokens came `seconds` after the ones before."""
        for _ in range(tokens):
            self._itl.observe(seconds / tokens)

    def choice_ended(self, reason: str, per_token: float | None) -> None:
        """`per_token` is the mean time per token after the first; None with less than two tokens."""
        self._finished.labels(self._model_name, reason).inc()
        if per_token is not None:
            self._tpot.observe(per_token)

    def request_ended(self, seconds: float, *, slowest_first_token: float, slo_class: int) -> None:
        """All choices ended. A request in a lower class than the engine's has no target, and counts for no goodput."""
        self._e2e.observe(seconds)
        if self._goodput is not None:
            self._goodput.request_ended(slowest_first_token, slo_class)

    def ttft_p90(self) -> float | None:
        """The 90th percentile over the last 60 s; None without a first token in that time."""
        since = self._clock() - TTFT_WINDOW_SECONDS
        recent = sorted(seconds for at, seconds in self._recent.copy() if at >= since)
        return recent[min(len(recent) - 1, int(0.9 * len(recent)))] if recent else None


class _Goodput:
    """How many requests had a target, and how many of them it was met for."""

    def __init__(self, target: TtftTarget, model_name: str, registry: CollectorRegistry) -> None:
        self._target = target

        def counter(name: str, text: str) -> Counter:
            return Counter(name, text, ["model_name"], registry=registry).labels(model_name)

        self._with_slo = counter(
            "kvik_requests_with_slo", "Requests of the engine's class that ended, so that --slo-ttft is about them."
        )
        self._within_slo = counter(
            "kvik_requests_within_slo",
            "Requests of the engine's class that ended and whose first tokens came within --slo-ttft.",
        )

    def request_ended(self, slowest_first_token: float, slo_class: int) -> None:
        if slo_class != self._target.slo_class:
            return
        self._with_slo.inc()
        if slowest_first_token <= self._target.seconds:
            self._within_slo.inc()
