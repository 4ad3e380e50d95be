"""The scale loop over fakes: one pool, its engines and the API server, in memory."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from kvik_operator.autoscale.board import Board
from kvik_operator.autoscale.drivers import Means
from kvik_operator.autoscale.loop import ScaleLoop
from kvik_operator.autoscale.rivals import Rival
from kvik_operator.autoscale.scrape import Target
from kvik_operator.autoscale.types import EngineState, LoadReading
from kvik_operator.errors import ClusterError
from kvik_operator.names import ChildKind, PoolKey
from kvik_operator.reconcile.types import EngineInfo, PlannedEvent, ScalingReport

KEY = PoolKey("demo", "chat")
EVERYTHING = Means(metrics_api=True, keda=True, keda_served=True)
IDLE = LoadReading(0.0, EngineState.READY, 0, 1000, 0, 0, 0, 0, 1000.0, "2026-01-01T00:00:00Z")


def pool_object(replicas: int = 1, uid: str = "pool-1", generation: int = 1, **scaling: Any) -> dict[str, Any]:
    spec: dict[str, Any] = {"model": {"source": "file:///models/x"}, "replicas": replicas}
    if scaling:
        spec["scaling"] = scaling
    metadata = {"namespace": "demo", "name": "chat", "uid": uid, "resourceVersion": "1", "generation": generation}
    return {"metadata": metadata, "spec": spec, "status": {}}


class World:
    """Store, engines, API server and meter in one. As many pods as the pool asks for are always there and warm."""

    def __init__(self, *, means: Means = EVERYTHING, **scaling: Any) -> None:
        self.now = 0.0
        self.leader = True
        self.object: dict[str, Any] = pool_object(**scaling)
        self.server: dict[str, Any] | None = None
        """What a fresh read gives in place of `object`: the watch lags behind."""
        self.gauges: dict[PoolKey, tuple[float, int | None]] = {}
        self.readings: dict[str, LoadReading] = {}
        self.autoscaler: dict[str, Any] | None = None
        self.scaled_object: dict[str, Any] | None = None
        self.rivals: list[Rival] = []
        self.looked_for_rivals: list[set[str]] = []
        self.error: ClusterError | None = None
        self.written: list[int] = []
        self.events: list[PlannedEvent] = []
        self.enqueued: list[PoolKey] = []
        self.asked_info: list[str] = []
        self.board = Board(lambda: self.now)
        self.loop = ScaleLoop(
            store=self,
            board=self.board,
            scraper=self,
            writer=self,
            rivals=self,
            means=lambda: means,
            meter=self,
            may_write=lambda: self.leader,
            enqueue=self._enqueue,
            clock=lambda: self.now,
            utcnow=lambda: datetime(2026, 1, 1, tzinfo=UTC),
        )

    def pool_keys(self) -> set[PoolKey]:
        return {KEY}

    def pool(self, key: PoolKey) -> Mapping[str, Any] | None:
        return self.object

    def child(self, key: PoolKey, kind: ChildKind) -> Mapping[str, Any] | None:
        return {ChildKind.AUTOSCALER: self.autoscaler, ChildKind.SCALED_OBJECT: self.scaled_object}.get(kind)

    async def look(self, namespaces: Iterable[str]) -> None:
        self.looked_for_rivals.append(set(namespaces))

    def of(self, key: PoolKey) -> Sequence[Rival]:
        return self.rivals

    def pods(self, key: PoolKey) -> Sequence[Mapping[str, Any]]:
        numbers = range(self.object["spec"]["replicas"])
        return [{"metadata": {"uid": f"p{n}"}, "status": {"podIP": f"10.0.0.{n}"}} for n in numbers]

    async def loads(self, targets: Sequence[Target]) -> dict[str, LoadReading]:
        return {t.uid: replace(self.readings[t.uid], at=self.now) for t in targets if t.uid in self.readings}

    async def info(self, target: Target) -> EngineInfo | None:
        self.asked_info.append(target.uid)
        return EngineInfo("0.1.0", "m")

    async def scale_pool(self, pool: Mapping[str, Any], replicas: int) -> None:
        assert pool is (self.server or self.object), "the pool as it was freshly read"
        if self.error is not None:
            raise self.error
        self.written.append(replicas)
        self.set_replicas(replicas)

    async def read_pool(self, key: PoolKey) -> Mapping[str, Any] | None:
        return self.server or self.object

    def emit(self, event: PlannedEvent) -> None:
        self.events.append(event)

    def decided(self, key: PoolKey, load: float, desired: int | None) -> None:
        self.gauges[key] = (load, desired)

    def undecided(self, key: PoolKey) -> None:
        self.gauges.pop(key, None)

    def scaled(self, key: PoolKey, direction: str) -> None: ...

    def keep_pools(self, keys: Iterable[PoolKey]) -> None: ...

    def _enqueue(self, keys: Iterable[PoolKey]) -> None:
        self.enqueued.extend(keys)

    def set_replicas(self, replicas: int) -> None:
        metadata = {**self.object["metadata"], "generation": self.object["metadata"]["generation"] + 1}
        self.object = {**self.object, "metadata": metadata, "spec": {**self.object["spec"], "replicas": replicas}}

    def load(self, waiting: int) -> None:
        """The same queue on every pod there can be."""
        self.readings = {f"p{n}": replace(IDLE, waiting=waiting) for n in range(8)}

    async def rounds(self, count: int) -> None:
        for _ in range(count):
            await self.loop.look_for_rivals()
            await self.loop.round()
            self.now += 5.0

    @property
    def report(self) -> ScalingReport:
        report = self.board.scaling(KEY, self.object["metadata"]["uid"])
        assert report is not None
        return report
