"""The scale flow: scrape -> load -> decide -> board -> the pool's `/scale`, every 5 s.

Every replica of the operator runs it, so that a new leader has a window already; only the leader writes.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Protocol

from kvik_operator.autoscale.board import Board
from kvik_operator.autoscale.contest import Contest
from kvik_operator.autoscale.decide import decide
from kvik_operator.autoscale.drivers import Means, Scalers, Standing, standing
from kvik_operator.autoscale.followed import Followed
from kvik_operator.autoscale.history import KEPT, read_history
from kvik_operator.autoscale.load import pool_load
from kvik_operator.autoscale.rivals import Rival, is_the_operators
from kvik_operator.autoscale.scrape import Target
from kvik_operator.autoscale.types import PERIOD_SECONDS, Decision, LoadReading, ScalePolicy
from kvik_operator.autoscale.windows import PoolMemory
from kvik_operator.counted import counted
from kvik_operator.crd.conditions import find
from kvik_operator.crd.effective import effective
from kvik_operator.crd.inferencepool import InferencePool, ScalingDriver, is_paused
from kvik_operator.errors import ClusterError, Conflict, PoolError, Refused, Unavailable
from kvik_operator.names import PORT_METRICS, ChildKind, ConditionType, PoolKey, Reason
from kvik_operator.reconcile.types import EngineInfo, PlannedEvent, ScaleStep, ScalingReport
from kvik_operator.telemetry.logging import log_context

log = logging.getLogger(__name__)

Object = Mapping[str, Any]

ECHO_SECONDS: Final = 15.0
"""How long a number that we wrote may take to come back through the watch before it is written again."""


class Store(Protocol):
    def pool(self, key: PoolKey) -> Object | None: ...

    def pods(self, key: PoolKey) -> Sequence[Object]: ...

    def child(self, key: PoolKey, kind: ChildKind) -> Object | None: ...

    def pool_keys(self) -> set[PoolKey]: ...


class Scraper(Protocol):
    async def loads(self, targets: Sequence[Target]) -> dict[str, LoadReading]: ...

    async def info(self, target: Target) -> EngineInfo | None: ...


class ScaleWriter(Protocol):
    async def scale_pool(self, pool: Object, replicas: int) -> None: ...

    async def read_pool(self, key: PoolKey) -> Object | None: ...

    def emit(self, event: PlannedEvent) -> None: ...


class Rivals(Protocol):
    async def look(self, namespaces: Iterable[str]) -> None: ...

    def of(self, key: PoolKey) -> Sequence[Rival]: ...


class ScaleMeter(Protocol):
    def decided(self, key: PoolKey, load: float, desired: int | None) -> None: ...

    def undecided(self, key: PoolKey) -> None: ...

    def scaled(self, key: PoolKey, direction: str) -> None: ...

    def keep_pools(self, keys: Iterable[PoolKey]) -> None: ...


@dataclass(slots=True)
class _Pool:
    """What the loop remembers of one pool, by uid: a successor of the same name starts anew."""

    uid: str
    memory: PoolMemory = field(default_factory=PoolMemory)
    contest: Contest = field(default_factory=Contest)
    followed: Followed = field(default_factory=Followed)
    scaled_object: str | None = None
    """The uid of the last one that was the pool's own: what KEDA made of it goes after it."""
    history: tuple[ScaleStep, ...] = ()


class ScaleLoop:
    """`may_write`: whether this process is the leader. `means`: what drivers other than Native find now.

    `clock` is monotonic, `utcnow` for people.
    """

    def __init__(
        self,
        *,
        store: Store,
        board: Board,
        scraper: Scraper,
        writer: ScaleWriter,
        rivals: Rivals,
        means: Callable[[], Means],
        meter: ScaleMeter,
        may_write: Callable[[], bool],
        enqueue: Callable[[Iterable[PoolKey]], None],
        clock: Callable[[], float],
        utcnow: Callable[[], datetime],
    ) -> None:
        self._store = store
        self._board = board
        self._scraper = scraper
        self._writer = writer
        self._rivals = rivals
        self._means = means
        self._meter = meter
        self._may_write = may_write
        self._enqueue = enqueue
        self._clock = clock
        self._utcnow = utcnow
        self._pools: dict[PoolKey, _Pool] = {}
        self._decided: set[PoolKey] = set()
        """The pools of which this round knows load and size."""

    async def run(self) -> None:
        """Until cancelled. Rivals are looked for beside the rounds: a slow API server must not age what these read."""
        async with asyncio.TaskGroup() as tasks:
            for work in (self.round, self.look_for_rivals):
                tasks.create_task(self._repeat(work))

    async def _repeat(self, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            started = self._clock()
            await work()
            await asyncio.sleep(max(0.0, PERIOD_SECONDS - (self._clock() - started)))

    async def look_for_rivals(self) -> None:
        """Only the leader has to know of them, and only of those of pools that the operator scales."""
        if self._may_write():
            await self._rivals.look({key.namespace for key in self._store.pool_keys() if self._is_scaled_by_us(key)})

    async def round(self) -> None:
        """One pass over all pods and pools."""
        keys = self._store.pool_keys()
        pods = {key: self._store.pods(key) for key in keys}
        await self._scrape(pods)
        self._board.keep({str(pod["metadata"]["uid"]) for group in pods.values() for pod in group}, keys)
        self._meter.keep_pools(keys)
        self._decided = set()
        self._pools = {key: pool for key, pool in self._pools.items() if key in keys}
        for key in sorted(keys):
            with log_context(pool=str(key)):
                try:
                    await self._look_at(key, pods[key])
                except Exception:
                    # One pool must not keep the others from being scaled.
                    log.exception("scaling failed: this is a bug")
        for key in keys - self._decided:
            self._meter.undecided(key)

    def _is_scaled_by_us(self, key: PoolKey) -> bool:
        spec = (self._store.pool(key) or {}).get("spec") or {}
        scaling = spec.get("scaling")
        return scaling is not None and scaling.get("driver") != ScalingDriver.EXTERNAL

    async def _scrape(self, pods: Mapping[PoolKey, Sequence[Object]]) -> None:
        targets = {
            pod["metadata"]["uid"]: target for group in pods.values() for pod in group if (target := _target(pod))
        }
        owners = {pod["metadata"]["uid"]: key for key, group in pods.items() for pod in group}
        news = self._board.record(await self._scraper.loads(list(targets.values())))
        self._enqueue({owners[uid] for uid in news})
        starts = {uid: start for uid in targets if (start := self._board.wants_info(uid)) is not None}
        infos = await asyncio.gather(*(self._scraper.info(targets[uid]) for uid in starts))
        for (uid, start), info in zip(starts.items(), infos, strict=True):
            if info is not None:
                self._board.record_info(uid, start, info)
                self._enqueue([owners[uid]])

    async def _look_at(self, key: PoolKey, pods: Sequence[Object]) -> None:
        obj = self._store.pool(key)
        if obj is None or "deletionTimestamp" in obj["metadata"]:
            return
        report = await self._report(key, obj, pods)
        if self._board.report(key, str(obj["metadata"]["uid"]), report):
            self._enqueue([key])

    async def _report(self, key: PoolKey, obj: Object, pods: Sequence[Object]) -> ScalingReport | None:
        """Decide and act; None: nobody scales this pool."""
        try:
            pool = InferencePool.from_object(obj)
            scaling = effective(pool.spec, key.name).scaling
        except PoolError:
            return None  # reconcile says which field
        if scaling is None:
            self._pools.pop(key, None)
            return None
        if _is_refused(pool):
            return None  # reconcile says which field; until it is mended, no replicas reach the Deployment
        known = self._known(key, pool)
        if pool.spec.replicas == 0:
            known.memory = PoolMemory()
            return self._said(known, Reason.STOPPED, "replicas is 0: stopped by hand, nobody scales it", active=False)
        if pool.paused:
            known.memory = PoolMemory()
            return self._said(known, Reason.PAUSED, "paused: nobody scales the pool", active=False)
        policy, now = ScalePolicy.of(scaling), self._clock()
        decision = decide(
            pool_load(self._board.samples(pods), policy, now), pool.spec.replicas, policy, known.memory, now
        )
        if not decision.blind:
            self._decided.add(key)
            self._meter.decided(key, decision.load, decision.desired)
        published_for = known.followed.publish(decision, now)
        stands = standing(scaling.driver, self._scalers(key, known), self._means(), published_for)
        if not stands.writes:
            return self._carried_out_by_others(key, pool, known, decision, scaling.driver, stands)
        known.followed.written_by_us()
        if self._may_write():
            known.contest.observe(pool.spec.replicas, now)
            if known.contest.contested():
                return self._said(known, Reason.CONTESTED, _CONTESTED, active=False)
            refused = await self._try_to_act(key, pool, known, decision)
            if refused is not None:
                return refused
        return self._outcome(known, decision)

    def _scalers(self, key: PoolKey, known: _Pool) -> Scalers:
        found = {kind: self._store.child(key, kind) for kind in (ChildKind.AUTOSCALER, ChildKind.SCALED_OBJECT)}
        own = {kind: child for kind, child in found.items() if child is not None and is_the_operators(child)}
        if ChildKind.SCALED_OBJECT in own:
            known.scaled_object = own[ChildKind.SCALED_OBJECT]["metadata"]["uid"]
        ours = known.scaled_object
        return Scalers(own, [rival.name for rival in self._rivals.of(key) if ours is None or rival.maker != ours])

    def _carried_out_by_others(
        self,
        key: PoolKey,
        pool: InferencePool,
        known: _Pool,
        decision: Decision,
        driver: ScalingDriver,
        stands: Standing,
    ) -> ScalingReport:
        """The decision is published all the same: an autoscaler that is in trouble needs it to get out of it."""
        known.contest = Contest()
        history, leads = read_history(pool.status), self._may_write()
        step = known.followed.observe(pool.spec.replicas, decision, history, leads=leads)
        if step is not None and driver is not ScalingDriver.EXTERNAL:
            self._note_step(key, pool, known, step.decision, step.before, pool.spec.replicas, f"by driver {driver}")
        trouble = stands.trouble
        if decision.blind and (trouble is None or trouble[0] is Reason.OBSERVING_LOAD):
            trouble = Reason.NO_LOAD_DATA, decision.formula
        if trouble is not None:
            return self._said(known, *trouble, active=False, desired=decision.desired)
        reason = Reason.LOAD_PUBLISHED if driver is ScalingDriver.EXTERNAL else Reason.SCALING_ON_LOAD
        return self._said(
            known,
            reason if decision.window_whole else Reason.OBSERVING_LOAD,
            f"driver {driver}: {decision.formula}",
            active=True,
            desired=decision.desired,
        )

    async def _try_to_act(
        self, key: PoolKey, pool: InferencePool, known: _Pool, decision: Decision
    ) -> ScalingReport | None:
        """None: done, or it will pass; else what the API server refuses."""
        try:
            await self._act(key, pool, known, decision)
        except Refused as error:
            log.warning("the pool could not be scaled", extra={"error": str(error)})
            reason = Reason.ACCESS_DENIED if error.access_denied else Reason.APPLY_REFUSED
            return self._said(known, reason, str(error), active=False)
        except Conflict as error:
            log.info("somebody was faster", extra={"error": str(error)})  # the next round decides anew
        except ClusterError as error:
            log.warning("the pool was not scaled this time", extra={"error": str(error)})  # it will pass
        return None

    async def _act(self, key: PoolKey, pool: InferencePool, known: _Pool, decision: Decision) -> None:
        """Write `/scale` if the decision differs from what the pool asks for."""
        desired, current = decision.desired, decision.current
        if desired is None or desired == current or known.contest.awaits(desired, self._clock(), ECHO_SECONDS):
            return
        fresh = await self._unchanged(key, pool)
        if fresh is None:
            return  # the watch will bring what changed, and the next round decides on that
        try:
            await self._writer.scale_pool(fresh, desired)
        except Unavailable:
            known.contest.may_have_written(desired, self._clock())
            raise
        known.contest.wrote(desired, self._clock())
        log.info("scaled", extra={"from": current, "to": desired, "formula": decision.formula})
        self._note_step(key, pool, known, decision, current, desired, f"on {decision.winner}")

    def _note_step(
        self, key: PoolKey, pool: InferencePool, known: _Pool, decision: Decision, before: int, after: int, how: str
    ) -> None:
        """Into the history, the metrics and an Event."""
        direction = "Up" if after > before else "Down"
        self._meter.scaled(key, direction.lower())
        step = ScaleStep(
            time=self._utcnow().replace(microsecond=0),
            from_replicas=before,
            to_replicas=after,
            reason=f"Scaled{direction}",
            winner=decision.winner.value,
            load_percent=round(100 * decision.load),
            formula=decision.formula[:256],
        )
        known.history = (step, *known.history)[:KEPT]
        message = f"from {before} to {counted(after, 'replica')} {how}: {decision.formula}"
        self._writer.emit(PlannedEvent(key, "Normal", step.reason, message, pool.uid))

    async def _unchanged(self, key: PoolKey, pool: InferencePool) -> Object | None:
        """The pool as the server has it, if its spec is still what was decided on: a watch may lag or be deaf.

        A user's `replicas: 0` or own number, or a `scaling` taken out, must not be overridden, up or down.
        """
        fresh = await self._writer.read_pool(key)
        metadata = {} if fresh is None else fresh["metadata"]
        same = metadata.get("uid") == pool.uid and metadata.get("generation", 1) == pool.generation
        if fresh is None or not same or "deletionTimestamp" in metadata or is_paused(fresh):
            return None
        return fresh

    def _known(self, key: PoolKey, pool: InferencePool) -> _Pool:
        known = self._pools.get(key)
        if known is None or known.uid != pool.uid:
            known = self._pools[key] = _Pool(pool.uid, history=read_history(pool.status))
        return known

    def _outcome(self, known: _Pool, decision: Decision) -> ScalingReport:
        if decision.blind:
            return self._said(known, Reason.NO_LOAD_DATA, decision.formula, active=False, desired=decision.desired)
        reason = Reason.SCALING_ON_LOAD if decision.window_whole else Reason.OBSERVING_LOAD
        return self._said(known, reason, decision.formula, active=True, desired=decision.desired)

    def _said(
        self, known: _Pool, reason: Reason, message: str, *, active: bool, desired: int | None = None
    ) -> ScalingReport:
        return ScalingReport(active, reason, message, desired, self._utcnow().replace(microsecond=0), known.history)


def _is_refused(pool: InferencePool) -> bool:
    """Reconcile could not carry out the spec when it last looked: some rules need the operator's own settings."""
    degraded = find(pool.status.get("conditions") or (), ConditionType.DEGRADED) or {}
    return bool(degraded.get("reason") == Reason.INVALID_SPEC)


_CONTESTED: Final = (
    "somebody else changed the number of replicas three times within ten minutes; the operator does not scale this pool"
    " until ten minutes have passed without a foreign change"
)


def _target(pod: Object) -> Target | None:
    """Where a running pod answers; None: it has no address, or has ended."""
    status = pod.get("status") or {}
    address = status.get("podIP")
    if not address or status.get("phase") in ("Succeeded", "Failed") or "deletionTimestamp" in pod["metadata"]:
        return None
    return Target(str(pod["metadata"]["uid"]), address, PORT_METRICS)
