"""The operator's own metrics, all named `kvik_operator_*`. Metric names are API.

One registry per process, made in app.py; gauges ask their source when they are scraped.
"""

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

from kvik_operator.names import PoolKey
from kvik_operator.telemetry.pool_metrics import PoolCollector, Pools

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class OperatorMetrics:
    def __init__(self, version: str, pools: Pools) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(PoolCollector(pools))
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        info = Gauge("kvik_operator_build_info", "Always 1.", ["version"], registry=self.registry)
        info.labels(version).set(1)
        self._reconciles = Histogram(
            "kvik_operator_reconcile_seconds",
            "Duration of one reconcile; outcome is ok, retry or bug.",
            ["outcome"],
            buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
            registry=self.registry,
        )
        self._writes = Counter(
            "kvik_operator_api_writes_total",
            "Writes to the API server by call (apply, delete, patch, annotate, scale or replace) and outcome.",
            ["call", "outcome"],
            registry=self.registry,
        )
        self._scrapes = Counter(
            "kvik_operator_scrapes_total",
            "Requests to engine pods; outcome is ok, unreachable, refused or unreadable.",
            ["outcome"],
            registry=self.registry,
        )
        self._feeds = Counter(
            "kvik_operator_watch_restarts_total",
            "Times that the watches ended with an error and were started again.",
            registry=self.registry,
        )
        self._load = Gauge(
            "kvik_operator_pool_load_ratio",
            "Load of the whole pool in full pods (1 = one full pod); absent while there is no load data.",
            ["namespace", "pool"],
            registry=self.registry,
        )
        self._desired = Gauge(
            "kvik_operator_pool_desired_replicas",
            "Replicas the pool should have; absent while there is no load data.",
            ["namespace", "pool"],
            registry=self.registry,
        )
        self._scaled = Counter(
            "kvik_operator_pool_scalings_total",
            "Changes of a pool's replicas by the autoscaler; direction is up or down.",
            ["namespace", "pool", "direction"],
            registry=self.registry,
        )
        self._api_services = Gauge(
            "kvik_operator_metrics_api_registered",
            "By APIService: 1 where it leads to this operator, 0 where there is none or it is somebody else's.",
            ["api_service"],
            registry=self.registry,
        )
        self._certificates = Gauge(
            "kvik_operator_certificate_expiration_timestamp_seconds",
            "By what it is for: when the certificate ends that this replica presents, in seconds since 1970.",
            ["certificate"],
            registry=self.registry,
        )
        self._pools: set[PoolKey] = set()

    def gauge(self, name: str, help_text: str, source: Callable[[], float]) -> None:
        """A gauge that asks `source` at each scrape, from the probe server's thread."""
        Gauge(name, help_text, registry=self.registry).set_function(source)

    def reconciled(self, seconds: float, outcome: str) -> None:
        self._reconciles.labels(outcome).observe(seconds)

    def wrote(self, what: str, outcome: str) -> None:
        self._writes.labels(what, outcome).inc()

    def scraped(self, outcome: str) -> None:
        self._scrapes.labels(outcome).inc()

    def watches_restarted(self) -> None:
        self._feeds.inc()

    def api_registered(self, api_service: str, ours: bool) -> None:
        self._api_services.labels(api_service).set(ours)

    def certificate_presented(self, certificate: str, end: datetime) -> None:
        self._certificates.labels(certificate).set(end.timestamp())

    def decided(self, key: PoolKey, load: float, desired: int | None) -> None:
        self._pools.add(key)
        self._load.labels(*key).set(load)
        if desired is None:
            self._desired.remove_by_labels({"namespace": key.namespace, "pool": key.name})
        else:
            self._desired.labels(*key).set(desired)

    def undecided(self, key: PoolKey) -> None:
        """There is no load data, or nobody scales this pool (any more): missing is not zero, and not the last value."""
        for metric in (self._load, self._desired):
            metric.remove_by_labels({"namespace": key.namespace, "pool": key.name})

    def scaled(self, key: PoolKey, direction: str) -> None:
        self._scaled.labels(*key, direction).inc()

    def keep_pools(self, keys: Iterable[PoolKey]) -> None:
        """Forget the series of all pools but these."""
        for key in self._pools - set(keys):
            labels = {"namespace": key.namespace, "pool": key.name}
            for metric in (self._load, self._desired, self._scaled):
                metric.remove_by_labels(labels)
            self._pools.discard(key)

    def page(self) -> bytes:
        return generate_latest(self.registry)
