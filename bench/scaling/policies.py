"""Who decides on replicas: ours, Kubernetes' HPA on one metric, and the published formulas of others. Pure.

Each is written after its project's documentation or source, with its own defaults, from what a pod of ours reports.
Where a default counts something that these pods have less of (100 requests on pods of 32 rows), the figure is scaled
and said. Sources: docs/decisions/0091.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from bench.scaling.pod import PodReport
from bench.scaling.world import PodView
from kvik_operator.autoscale.decide import decide
from kvik_operator.autoscale.load import pool_load
from kvik_operator.autoscale.types import EngineState, LoadReading, PodSample, ScalePolicy
from kvik_operator.autoscale.windows import PoolMemory

HPA_PERIOD = 15.0
HPA_TOLERANCE = 0.1
HPA_DOWN_WINDOW = 300.0
KV_FULL = 0.8
QUEUE_FULL = 5

Metric = Callable[[PodReport], float | None]
T = TypeVar("T")


@dataclass(slots=True)
class Kvik:
    """The operator's own deciders, fed as its scale flow feeds them."""

    policy: ScalePolicy
    _memory: PoolMemory = field(default_factory=PoolMemory)
    _readings: dict[str, tuple[LoadReading, ...]] = field(default_factory=dict)

    def wants(self, now: float, pods: Sequence[PodView], current: int) -> int:
        for pod in pods:
            if pod.report is not None:
                reading = _reading(now, pod.report)
                self._readings[pod.uid] = (reading, *self._readings.get(pod.uid, ()))[:3]
        samples = [PodSample(pod.uid, pod.warm, self._readings.get(pod.uid, ())) for pod in pods]
        decision = decide(pool_load(samples, self.policy, now), current, self.policy, self._memory, now)
        return current if decision.desired is None else decision.desired


def _reading(now: float, report: PodReport) -> LoadReading:
    return LoadReading(
        at=now,
        state=EngineState.READY,
        kv_blocks_used=report.kv_tokens_used,
        kv_blocks_total=report.kv_tokens_total,
        running=report.running,
        waiting=report.waiting,
        refused_total=report.refused_total,
        waiting_prompt_tokens=report.waiting_prompt_tokens,
        prefill_tokens_per_second=report.prefill_tokens_per_second,
        warm_since="",
    )


@dataclass(slots=True)
class Stabilized:
    """What HPA does with a recommendation: the highest of its window, and limits on how much may change at once.

    `down_step` pods may go in `down_period` seconds; by default all may.
    """

    window: float = HPA_DOWN_WINDOW
    down_step: int | None = None
    down_period: float = 15.0
    _recommended: deque[tuple[float, int]] = field(default_factory=deque)
    _had: deque[tuple[float, int]] = field(default_factory=deque)

    def limited(self, now: float, recommended: int, current: int) -> int:
        _remember(self._recommended, now, recommended, self.window)
        _remember(self._had, now, current, max(HPA_PERIOD, self.down_period))
        highest = max(replicas for _, replicas in self._recommended)
        if recommended > current:
            before = min(replicas for at, replicas in self._had if at > now - HPA_PERIOD)
            return min(recommended, max(2 * before, before + 4))
        before = max(replicas for at, replicas in self._had if at > now - self.down_period)
        lowest = 0 if self.down_step is None else before - self.down_step
        return max(min(highest, current), lowest)


@dataclass(slots=True)
class Hpa:
    """autoscaling/v2 on one metric of the pods with an AverageValue target (its replica calculator).

    Pods without a value count as 0 on the way up and as the target on the way down; so do starting ones on the way up.
    """

    metric: Metric
    target: float
    limits: Stabilized = field(default_factory=Stabilized)
    _next: float = 0.0

    def wants(self, now: float, pods: Sequence[PodView], current: int) -> int:
        if now < self._next:
            return current
        self._next = now + HPA_PERIOD
        return self.limits.limited(now, self._recommended(pods, current), current)

    def _recommended(self, pods: Sequence[PodView], current: int) -> int:
        values = [value for pod in pods if pod.report is not None and (value := self.metric(pod.report)) is not None]
        if not values:
            return current
        ratio = _mean(values) / self.target
        absent = len(pods) - len(values)
        if not absent:
            return current if abs(ratio - 1) <= HPA_TOLERANCE else math.ceil(ratio * len(values))
        assumed = [*values, *[self.target if ratio < 1 else 0.0] * absent]
        again = _mean(assumed) / self.target
        if abs(again - 1) <= HPA_TOLERANCE or (ratio < 1) != (again < 1):
            return current
        wanted = math.ceil(again * len(assumed))
        return current if (wanted - current) * (again - 1) < 0 else wanted


@dataclass(slots=True)
class HpaOnTtft:
    """HPA on the pool's mean TTFT with a Value target, as from a Prometheus adapter. No traffic, no value: it holds."""

    target: float
    limits: Stabilized = field(default_factory=Stabilized)
    _next: float = 0.0

    def wants(self, now: float, pods: Sequence[PodView], current: int) -> int:
        if now < self._next:
            return current
        self._next = now + HPA_PERIOD
        reports = _reports(pods)
        values = [report.mean_ttft for report in reports if report.mean_ttft is not None]
        recommended = current
        if values and abs(_mean(values) / self.target - 1) > HPA_TOLERANCE:
            recommended = math.ceil(len(reports) * _mean(values) / self.target)
        return self.limits.limited(now, max(1, recommended), current)


@dataclass(slots=True)
class Wva:
    """llm-d workload-variant-autoscaler, saturation: one pod up or down, by the spare capacity of the last minute."""

    period: float = 30.0
    _next: float = 0.0
    _kv: dict[str, deque[tuple[float, float]]] = field(default_factory=dict)
    _queue: dict[str, deque[tuple[float, float]]] = field(default_factory=dict)

    def wants(self, now: float, pods: Sequence[PodView], current: int) -> int:
        for pod in pods:
            if pod.report is not None:
                _remember(self._kv.setdefault(pod.uid, deque()), now, pod.report.kv, 60)
                _remember(self._queue.setdefault(pod.uid, deque()), now, float(pod.report.waiting), 60)
        seen = [pod.uid for pod in pods if pod.report is not None]
        if now < self._next or not seen or any(not pod.warm for pod in pods):
            return current
        self._next = now + self.period
        peaks = [(_peak(self._kv[uid]), _peak(self._queue[uid])) for uid in seen]
        free = [(kv, queue) for kv, queue in peaks if kv < KV_FULL and queue < QUEUE_FULL]
        if not free or not self._spare(free, len(free)):
            return current + 1
        return current - 1 if len(free) >= 2 and self._spare(free, len(free) - 1) else current

    @staticmethod
    def _spare(free: Sequence[tuple[float, float]], pods: int) -> bool:
        """Whether the load of these pods, spread on so many, leaves 10 % KV and a queue of three each."""
        kv, queue = sum(kv for kv, _ in free) / pods, sum(queue for _, queue in free) / pods
        return KV_FULL - kv >= 0.1 and QUEUE_FULL - queue >= 3


@dataclass(slots=True)
class KubeAi:
    """KubeAI: active requests, averaged over ten minutes, over a target a pod; down after 30 s of votes for it."""

    target: float
    _active: deque[tuple[float, float]] = field(default_factory=deque)
    _votes: int = 0
    _next: float = 0.0

    def wants(self, now: float, pods: Sequence[PodView], current: int) -> int:
        if now < self._next:
            return current
        self._next = now + 10
        _remember(self._active, now, sum(float(r.running + r.waiting) for r in _reports(pods)), 600)
        average = sum(active for _, active in self._active) / 60  # its window starts filled with zeros
        wanted = max(1, math.ceil(average / self.target))
        self._votes = self._votes + 1 if wanted < current else 0
        return wanted if wanted > current or self._votes >= 3 else current


@dataclass(slots=True)
class Kthena:
    """Kthena: the largest of several metrics; missing pods count as target on the way down and 0 on the way up."""

    metrics: Sequence[tuple[Metric, float]]
    _next: float = 0.0
    _hold_until: float = 0.0

    def wants(self, now: float, pods: Sequence[PodView], current: int) -> int:
        if now < self._next:
            return current
        self._next = now + 15
        wanted = max(self._by(metric, target, pods, current) for metric, target in self.metrics)
        if wanted >= 2 * current:
            self._hold_until = now + 60
        return wanted if wanted > current or now >= self._hold_until else current

    @staticmethod
    def _by(metric: Metric, target: float, pods: Sequence[PodView], current: int) -> int:
        values = [value for report in _reports(pods) if (value := metric(report)) is not None]
        absent = len(pods) - len(values)
        up = sum(values) / target
        down = up + absent
        if abs(up / current - 1) <= 0.1 or abs(down / current - 1) <= 0.1:
            return current
        if up > current:
            return math.ceil(up)
        return max(1, math.ceil(down)) if down < current else current


@dataclass(slots=True)
class AibrixKpa:
    """AIBrix' KPA: the mean over a stable window, or over a panic window when that asks for twice what there is."""

    metric: Metric
    target: float
    stable_window: float = 180.0
    panic_window: float = 60.0
    down_delay: float = 300.0
    _sums: deque[tuple[float, float]] = field(default_factory=deque)
    _wanted: deque[tuple[float, int]] = field(default_factory=deque)
    _panic_until: float = -math.inf

    def wants(self, now: float, pods: Sequence[PodView], current: int) -> int:
        values = [value for report in _reports(pods) if (value := self.metric(report)) is not None]
        if not values:
            return current
        _remember(self._sums, now, sum(values), self.stable_window)
        stable = _mean([total for _, total in self._sums]) / self.target
        panic = _mean([total for at, total in self._sums if at > now - self.panic_window]) / self.target
        if panic >= 2 * current:
            self._panic_until = now + self.stable_window
        panicking = now < self._panic_until
        wanted = max(1, math.ceil(max(panic, current) if panicking else stable))
        wanted = min(wanted, 2 * current)
        _remember(self._wanted, now, wanted, self.down_delay)
        return max(replicas for _, replicas in self._wanted) if wanted < current else wanted


def _reports(pods: Iterable[PodView]) -> list[PodReport]:
    return [pod.report for pod in pods if pod.report is not None]


def _remember(window: deque[tuple[float, T]], now: float, value: T, seconds: float) -> None:
    window.append((now, value))
    while window[0][0] <= now - seconds:
        window.popleft()


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _peak(window: Iterable[tuple[float, float]]) -> float:
    return max(value for _, value in window)
