"""The last readings of every pod and what was decided for every pool. Written by the scale loop, read by everybody.

Thread-safe: values are immutable and replaced whole under a lock.
"""

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from kvik_operator.autoscale.load import FRESH_SECONDS
from kvik_operator.autoscale.types import LoadReading, PodSample
from kvik_operator.names import PoolKey
from kvik_operator.reconcile.pod_state import is_ready, live_pods
from kvik_operator.reconcile.types import EngineInfo, ScalingReport

Object = Mapping[str, Any]

READINGS_KEPT = 3


class Board:
    """`clock` gives monotonic seconds, the same as the readings' `at`."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._readings: dict[str, tuple[LoadReading, ...]] = {}
        self._once_warm: set[str] = set()
        self._infos: dict[str, tuple[str, EngineInfo]] = {}
        self._reports: dict[PoolKey, tuple[str, ScalingReport]] = {}
        """With the pool's uid: one of the same name that comes after it inherits nothing."""

    def scaling(self, key: PoolKey, pool_uid: str) -> ScalingReport | None:
        with self._lock:
            uid, report = self._reports.get(key, (None, None))
            return report if uid == pool_uid else None

    def info(self, pod_uid: str) -> EngineInfo | None:
        with self._lock:
            known = self._infos.get(pod_uid)
            return known[1] if known is not None else None

    def work(self, pod_uid: str) -> int | None:
        reading = self.latest(pod_uid)
        if reading is None or self._clock() - reading.at > FRESH_SECONDS:
            return None
        return reading.running + reading.waiting

    def keys_outdated(self, pod_uid: str) -> bool:
        reading = self.latest(pod_uid)
        return reading is not None and bool(reading.api_keys_outdated)

    def latest(self, pod_uid: str) -> LoadReading | None:
        with self._lock:
            readings = self._readings.get(pod_uid)
            return readings[0] if readings else None

    def samples(self, pods: Sequence[Object]) -> list[PodSample]:
        """The pool's pods that neither end nor have ended, as the deciders see them."""
        with self._lock:
            return [
                PodSample(uid, is_ready(pod) or uid in self._once_warm, self._readings.get(uid, ()))
                for pod in live_pods(pods)
                if (uid := str(pod["metadata"]["uid"]))
            ]

    def record(self, readings: Mapping[str, LoadReading]) -> set[str]:
        """Returns the pods that say something else of their API keys than before."""
        news = {uid for uid, new in readings.items() if bool(new.api_keys_outdated) != self.keys_outdated(uid)}
        with self._lock:
            for uid, reading in readings.items():
                self._readings[uid] = (reading, *self._readings.get(uid, ()))[:READINGS_KEPT]
                if reading.warm:
                    self._once_warm.add(uid)
        return news

    def wants_info(self, pod_uid: str) -> str | None:
        """The start (`warm_since`) whose `/info` has not been read yet; None: nothing to ask."""
        with self._lock:
            readings = self._readings.get(pod_uid)
            start = readings[0].warm_since if readings and readings[0].warm else None
            known = self._infos.get(pod_uid)
            return start if start is not None and (known is None or known[0] != start) else None

    def record_info(self, pod_uid: str, start: str, info: EngineInfo) -> None:
        with self._lock:
            self._infos[pod_uid] = (start, info)

    def report(self, key: PoolKey, pool_uid: str, report: ScalingReport | None) -> bool:
        """Put up what is thought of a pool; returns whether it says something new."""
        before = self.scaling(key, pool_uid)
        with self._lock:
            if report is None:
                self._reports.pop(key, None)
            else:
                self._reports[key] = (pool_uid, report)
        return _gist(before) != _gist(report)

    def keep(self, pod_uids: Collection[str], keys: Collection[PoolKey]) -> None:
        """Forget all pods and pools but these."""
        with self._lock:
            for uid in set(self._readings) - set(pod_uids):
                del self._readings[uid]
            self._once_warm.intersection_update(pod_uids)
            self._infos = {uid: known for uid, known in self._infos.items() if uid in pod_uids}
            self._reports = {key: report for key, report in self._reports.items() if key in keys}


def _gist(report: ScalingReport | None) -> tuple[object, ...] | None:
    """What status should show at once; the times and the exact load are not worth a write each."""
    return None if report is None else (report.active, report.reason, report.desired, report.history)
