"""One look at one pool: observe -> revisions -> desired -> apply -> status. All of a pool's life follows from here.

Level-based: each run reads all and computes all, and writes only what differs; how often it runs does not matter.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from kvik_operator.crd.inferencepool import is_paused
from kvik_operator.errors import NotFound, PoolError
from kvik_operator.names import PoolKey, Reason
from kvik_operator.objects.metadata import digest
from kvik_operator.reconcile.apply import apply
from kvik_operator.reconcile.desired import configured_engine, desired, needs_fresh_look, wanted_replicas
from kvik_operator.reconcile.keep_revisions import Revisions
from kvik_operator.reconcile.observe import observe, with_deployment
from kvik_operator.reconcile.pod_state import is_ending, is_ready, live_pods
from kvik_operator.reconcile.revisions import with_values_of
from kvik_operator.reconcile.rewritten import Rewritten
from kvik_operator.reconcile.status import InUse, Reports, invalid_spec, status_update
from kvik_operator.reconcile.types import (
    Applied,
    ApplyProblem,
    Board,
    Cluster,
    Desired,
    Object,
    Observed,
    ReconcileOptions,
    Requeue,
    StatusUpdate,
    Store,
)

log = logging.getLogger(__name__)

CALM_STATUS_EVERY: Final = timedelta(minutes=1)
"""A change of wording alone is written this often."""
SAME_DECISION_EVERY: Final = timedelta(minutes=5)
"""So often is it written that the same was decided again: a pool without work costs hardly anything."""
RESYNC: Final = Requeue(60.0)
WATCH_CLOSELY: Final = Requeue(10.0)
"""While something is wrong or under way: permissions, quotas and foreign objects change without an event to us."""
LOOK_AGAIN_SOON: Final = Requeue(2.0)
"""The store lags behind, or an earlier pool's children are still being collected."""


@dataclass(frozen=True, slots=True)
class _Written:
    at: datetime
    essence: str
    """A digest of what was significant in it."""


class Reconciler:
    """Remembers of a pool which status was written when, which revision it is at, which children others rewrite, and
    when a pod last ended. All else is read anew.
    """

    def __init__(
        self,
        store: Store,
        cluster: Cluster,
        board: Board,
        options: ReconcileOptions,
        now: Callable[[], datetime],
    ) -> None:
        self._store = store
        self._cluster = cluster
        self._board = board
        self._options = options
        self._now = now
        self._status_written: dict[PoolKey, _Written] = {}
        self._revisions = Revisions(cluster)
        self._rewritten = Rewritten()
        self._room_made: dict[PoolKey, datetime] = {}

    async def reconcile(self, key: PoolKey) -> Requeue | None:
        """Returns when to look again; None: the pool is gone. Raises ClusterError for the queue to retry."""
        raw = self._store.pool(key)
        if raw is None or "deletionTimestamp" in raw["metadata"]:
            self._forget(key)
            return None
        try:
            observed = await with_deployment(self._observe(key, raw), self._cluster)
            if observed.pool.paused:
                return await self._leave_alone(raw, observed)
            configured = configured_engine(observed.pool.spec.resources.device, self._options)
            plan = await self._revisions.plan(observed, configured)
            if isinstance(plan, ApplyProblem):
                return await self._hold(raw, observed, plan)
            observed = with_values_of(observed, plan.use)
            wanted = desired(observed, plan.use, self._options, self._board.work)
            if needs_fresh_look(observed, plan, wanted) and await self._is_outdated(observed):
                return LOOK_AGAIN_SOON
            held = await self._revisions.keep(observed, plan)
            applied = held or await apply(self._cluster, observed, wanted, self._rewritten)
        except PoolError as error:
            update = invalid_spec(key, raw, self._store.pods(key), error, self._now())
            return await self._write_status(key, raw, update, RESYNC)
        if applied.gone:
            self._forget(key)
            return None
        run = None if held else InUse(plan.use, configured.reference)
        update = status_update(observed, wanted.replicas, applied, self._reports(observed), run)
        return await self._write_status(key, raw, update, _next_look(applied, observed, wanted))

    def _observe(self, key: PoolKey, raw: Object) -> Observed:
        observed = observe(key, raw, self._store, self._now())
        if any(is_ending(pod, observed.now) for pod in observed.pods):
            self._room_made[key] = observed.now
        return replace(observed, room_made=self._room_made.get(key))

    async def _hold(self, raw: Object, observed: Observed, problem: ApplyProblem) -> Requeue | None:
        """Nothing is touched: what the pods were made from is not known."""
        applied, replicas = Applied(observed.children, (problem,)), wanted_replicas(observed.pool.spec)
        update = status_update(observed, replicas, applied, self._reports(observed), None)
        return await self._write_status(observed.key, raw, update, WATCH_CLOSELY)

    async def _leave_alone(self, raw: Object, observed: Observed) -> Requeue | None:
        """Status goes on telling of the pods; the end of the pause is an event."""
        applied, replicas = Applied(observed.children), wanted_replicas(observed.pool.spec)
        update = status_update(observed, replicas, applied, self._reports(observed), None)
        return await self._write_status(observed.key, raw, update, RESYNC)

    async def _is_outdated(self, observed: Observed) -> bool:
        """Whether the pool is not the one any more that was observed."""
        fresh = await self._cluster.read_pool(observed.key)
        if fresh is None:
            self._store.forget_pool(observed.key, observed.pool.uid)
        metadata = {} if fresh is None else fresh["metadata"]
        same = metadata.get("uid") == observed.pool.uid and metadata.get("generation") == observed.pool.generation
        return not same or "deletionTimestamp" in metadata or (fresh is not None and is_paused(fresh))

    async def _write_status(self, key: PoolKey, raw: Object, update: StatusUpdate, then: Requeue) -> Requeue | None:
        """Events come after the status was written, so that they never tell of what nobody can see.

        What was written and still is not there is nothing new: an older CRD has no such field.
        """
        if not update.patch:
            return then
        now, last, essence = self._now(), self._status_written.get(key), digest(update.essence)
        every = SAME_DECISION_EVERY if update.time_alone else CALM_STATUS_EVERY
        if last is not None and now - last.at < every and (not update.significant or essence == last.essence):
            return then
        try:
            await self._cluster.patch_status(key, update.patch, raw["metadata"].get("resourceVersion"))
        except NotFound as error:
            if not error.is_about(key.name) and not error.is_about(key.namespace):
                raise  # the API is not served for now; the pool may well be there
            self._store.forget_pool(key, raw["metadata"]["uid"])
            self._forget(key)
            return None
        self._status_written[key] = _Written(now, essence)
        for event in update.events:
            self._cluster.emit(event)
        return then

    def _reports(self, observed: Observed) -> Reports:
        uids = [pod["metadata"].get("uid", "") for pod in observed.pods]
        infos = {uid: info for uid in uids if (info := self._board.info(uid)) is not None}
        outdated = {uid for uid in uids if self._board.keys_outdated(uid)}
        return Reports(infos, self._board.scaling(observed.key, observed.pool.uid), outdated)

    def _forget(self, key: PoolKey) -> None:
        self._status_written.pop(key, None)
        self._revisions.forget(key)
        self._rewritten.forget(key)
        self._room_made.pop(key, None)


def _next_look(applied: Applied, observed: Observed, wanted: Desired) -> Requeue:
    if any(problem.reason is Reason.STARTING for problem in applied.problems):
        return LOOK_AGAIN_SOON
    pods = live_pods(observed.pods)
    settled = not applied.problems and len(pods) == wanted.replicas and all(is_ready(pod) for pod in pods)
    return RESYNC if settled else WATCH_CLOSELY
