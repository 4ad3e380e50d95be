"""Finds what a request asks for in this replica's own readings and decisions, and says nothing where there are none."""

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Protocol

from kvik_operator.autoscale.published import published
from kvik_operator.autoscale.types import PodSample
from kvik_operator.metrics_api.documents import LABEL_POOL, PODS, POOLS, Sample
from kvik_operator.metrics_api.figures import DESIRED_REPLICAS, Figure, Metric, pod_figure, pool_figure
from kvik_operator.metrics_api.selector import Selector
from kvik_operator.names import PoolKey
from kvik_operator.reconcile.types import ScalingReport

Object = Mapping[str, Any]


class Store(Protocol):
    def pool(self, key: PoolKey) -> Object | None: ...

    def pods(self, key: PoolKey) -> Sequence[Object]: ...

    def pool_keys(self) -> set[PoolKey]: ...


class Board(Protocol):
    def samples(self, pods: Sequence[Object]) -> list[PodSample]: ...

    def scaling(self, key: PoolKey, pool_uid: str) -> ScalingReport | None: ...


PoolsMatching = Callable[[str, str], Awaitable[Sequence[str]]]
"""The names of the pools of a namespace whose labels a selector matches."""


class Source:
    """`clock` is that of the readings, `utcnow` that of the decisions."""

    def __init__(
        self,
        store: Store,
        board: Board,
        pools_matching: PoolsMatching,
        clock: Callable[[], float],
        utcnow: Callable[[], datetime],
    ) -> None:
        self._store = store
        self._board = board
        self._pools_matching = pools_matching
        self._clock = clock
        self._utcnow = utcnow

    async def pools(
        self, namespace: str, name: str | None, selector: str, metric: Metric, series: Selector
    ) -> list[Sample]:
        """Of the pool of this name or, `name` None, of all that the selector matches. `series` is about LABEL_POOL."""
        names = {key.name for key in self._store.pool_keys() if key.namespace == namespace}
        if name is not None:
            names &= {name}
        elif selector and names:
            names &= set(await self._pools_matching(namespace, selector))
        found = ((pool, self._pool_figure(PoolKey(namespace, pool), metric)) for pool in sorted(names))
        return [
            self._sample(POOLS, namespace, pool, metric, figure)
            for pool, figure in found
            if figure is not None and series.matches({LABEL_POOL: pool})
        ]

    def pods(
        self, namespace: str, name: str | None, selector: Selector, metric: Metric, series: Selector
    ) -> list[Sample]:
        """Of the pod of this name or, `name` None, of all that the selector matches."""
        samples: list[Sample] = []
        for pool, pod in self._pods(namespace):
            metadata = pod["metadata"]
            wanted = metadata["name"] == name if name is not None else selector.matches(metadata.get("labels") or {})
            if not wanted or not series.matches({LABEL_POOL: pool}):
                continue
            for heard in self._board.samples([pod]):
                figure = pod_figure(metric, heard, self._clock())
                if figure is not None:
                    samples.append(self._sample(PODS, namespace, metadata["name"], metric, figure))
        return samples

    def _pods(self, namespace: str) -> Iterator[tuple[str, Object]]:
        for key in sorted(self._store.pool_keys()):
            if key.namespace == namespace:
                for pod in self._store.pods(key):
                    yield key.name, pod

    def _pool_figure(self, key: PoolKey, metric: Metric) -> Figure | None:
        pool = self._store.pool(key)
        if pool is None or "deletionTimestamp" in pool["metadata"]:
            return None
        if metric is DESIRED_REPLICAS:
            found = published(self._board.scaling(key, str(pool["metadata"]["uid"])), self._utcnow())
            return None if found is None else Figure(float(found.replicas), found.age)
        return pool_figure(metric, self._board.samples(self._store.pods(key)), self._clock())

    def _sample(self, resource: str, namespace: str, name: str, metric: Metric, figure: Figure) -> Sample:
        return Sample(resource, namespace, name, metric, figure.value, self._utcnow() - timedelta(seconds=figure.age))
