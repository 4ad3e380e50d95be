"""What the watches know of each pool, as series for alerts and recording rules: conditions, sizes, targets.

Read from the store at each scrape. Every replica of the operator has them; rules take the `max` over replicas.
"""

from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any, Final, Protocol

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kvik_operator.crd.effective import Effective, EffectiveScaling, effective
from kvik_operator.crd.inferencepool import InferencePool
from kvik_operator.errors import PoolError
from kvik_operator.names import ConditionType, PoolKey

_PREFIX: Final = "kvik_operator_pool_"
_POOL: Final = ("namespace", "pool")
_GAUGES: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "info": ("SLO class and served name; always 1.", ("slo_class", "model_name")),
    "condition": ("Each condition as it stands; always 1.", ("type", "status", "reason")),
    "replicas": ("Pods that the spec asks for (asked), and that are ready (ready).", ("state",)),
    "slo_ttft_seconds": ("Target for the time to first token; absent without one.", ()),
    "startup_timeout_seconds": ("How long a pod may take to start.", ()),
    "startup_seconds": ("What the slowest start took, by phase; absent before the first.", ("phase",)),
    "min_replicas": ("Fewest pods; this and what follows is absent for a pool that nobody scales now.", ()),
    "max_replicas": ("Most pods.", ()),
    "target_load_ratio": ("Load of a pod to aim at, 1 being a full pod.", ()),
    "full_kv_cache_ratio": ("KV cache utilization at which a pod is full.", ()),
    "full_queued_requests": ("Waiting requests at which a pod is full.", ()),
    "full_ttft_seconds": ("Predicted time to first token at which a pod is full; absent without one.", ()),
}


class Pools(Protocol):
    """The store, as far as it is read here; from the probe server's thread."""

    def pool(self, key: PoolKey) -> Mapping[str, Any] | None: ...

    def pool_keys(self) -> set[PoolKey]: ...


class PoolCollector(Collector):
    """Asks `pools` anew each time it is collected."""

    def __init__(self, pools: Pools) -> None:
        self._pools = pools

    def describe(self) -> Iterator[Metric]:
        """Registering must not depend on which pools there are."""
        return iter(_families().values())

    def collect(self) -> Iterator[Metric]:
        families = _families()
        for key in sorted(self._pools.pool_keys()):
            obj = self._pools.pool(key)
            if obj is not None and "deletionTimestamp" not in obj["metadata"]:
                for name, labels, value in _series(obj):
                    families[name].add_metric([*key, *labels], value)
        return iter(families.values())


_Series = tuple[str, tuple[str, ...], float]


def _families() -> dict[str, GaugeMetricFamily]:
    return {
        name: GaugeMetricFamily(_PREFIX + name, text, labels=[*_POOL, *labels])
        for name, (text, labels) in _GAUGES.items()
    }


def _series(obj: Mapping[str, Any]) -> Iterator[_Series]:
    """(gauge, its labels beside the pool's, value). A spec that cannot be read has conditions that say so."""
    status = obj.get("status") or {}
    for condition in status.get("conditions") or ():
        if condition["type"] in set(ConditionType):
            yield "condition", (condition["type"], condition["status"], condition["reason"]), 1
    yield "replicas", ("ready",), status.get("readyReplicas", 0)
    for phase, duration in (status.get("startup") or {}).items():
        yield "startup_seconds", (phase,), float(duration.removesuffix("s"))  # as startup_times writes it
    try:
        pool = InferencePool.from_object(obj)
        values = effective(pool.spec, pool.key.name)
    except PoolError:
        return
    yield "replicas", ("asked",), pool.spec.replicas
    yield from _targets(values)
    if values.scaling is not None and pool.spec.replicas > 0 and not pool.paused:
        yield from _scaling(values.scaling)


def _targets(values: Effective) -> Iterator[_Series]:
    yield "info", (str(values.slo_class), values.model.name), 1
    if values.ttft is not None:
        yield "slo_ttft_seconds", (), _seconds(values.ttft)
    yield "startup_timeout_seconds", (), _seconds(values.startup_timeout)


def _scaling(scaling: EffectiveScaling) -> Iterator[_Series]:
    full = scaling.pod_full_at
    yield "min_replicas", (), scaling.min_replicas
    yield "max_replicas", (), scaling.max_replicas
    yield "target_load_ratio", (), scaling.target_load
    yield "full_kv_cache_ratio", (), full.kv_utilization
    yield "full_queued_requests", (), full.queued_requests
    if full.ttft is not None:
        yield "full_ttft_seconds", (), _seconds(full.ttft)


def _seconds(duration: timedelta) -> float:
    return duration / timedelta(seconds=1)
