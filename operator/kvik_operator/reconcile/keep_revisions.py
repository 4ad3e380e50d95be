"""Reads and writes ControllerRevisions as `revisions` decides.

They are listed, not watched: only this operator makes any, and no answer but a fresh one may lead to a new revision, or
an operator that has just started would roll what it has not heard of yet. What was found is remembered for a while.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from kvik_operator.errors import ClusterError, Refused
from kvik_operator.names import ChildKind, PoolKey
from kvik_operator.objects.engine_image import EngineImage
from kvik_operator.reconcile.refusals import answered, namespace_goes, overlook, problem
from kvik_operator.reconcile.revisions import as_asked, has_revision, needs_schema, plan_revisions, stays_at
from kvik_operator.reconcile.types import Applied, ApplyProblem, Cluster, Observed, Revision, RevisionPlan

LOOK_EVERY: Final = timedelta(minutes=5)
"""How late a ControllerRevision that somebody deleted is made again."""


@dataclass(frozen=True, slots=True)
class _Known:
    pool_uid: str
    revision: Revision
    since: datetime


class Revisions:
    """Remembers of a pool the revision that it is at, once it is stored; all else is read anew."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._known: dict[PoolKey, _Known] = {}

    async def plan(self, observed: Observed, configured: EngineImage) -> RevisionPlan | ApplyProblem:
        """`configured` is the operator's engine. A problem: they may not be listed. Raises PoolError as rendering."""
        known = self._known.get(observed.key)
        if (
            known is not None
            and known.pool_uid == observed.pool.uid
            and observed.now - known.since < LOOK_EVERY
            and stays_at(known.revision, observed)
        ):
            return RevisionPlan(known.revision)
        try:
            stored, deployed = await self._cluster.list_revisions(observed.key), None
            asks = needs_schema(stored, observed)
            observed = as_asked(stored, observed, await self._cluster.fields_not_served() if asks else ())
            if not has_revision(stored, observed):
                deployed = await self._cluster.read_child(ChildKind.DEPLOYMENT, observed.key)
        except Refused as error:
            return problem(error)
        return plan_revisions(stored, deployed, observed, configured)

    async def keep(self, observed: Observed, plan: RevisionPlan) -> Applied | None:
        """None: the revision in use is stored, so its template may be applied. Raises what the queue should retry."""
        if plan.blocked is not None:
            return Applied(observed.children, (plan.blocked,))
        await self._delete(observed, plan)
        for manifest in plan.write:
            try:
                await self._cluster.apply_revision(manifest)
            except ClusterError as error:
                if namespace_goes(error):
                    return Applied(observed.children, gone=True)
                if manifest["metadata"]["name"] == plan.use.name:
                    return Applied(observed.children, (problem(answered(error)),))
                overlook(error)  # an old one: the pods don't depend on it
        known = self._known.get(observed.key)
        if known is None or known.revision is not plan.use:
            self._known[observed.key] = _Known(observed.pool.uid, plan.use, observed.now)
        return None

    def forget(self, key: PoolKey) -> None:
        self._known.pop(key, None)

    async def _delete(self, observed: Observed, plan: RevisionPlan) -> None:
        """Best effort: one too many does no harm, and one in the way of a new one is told when that is written."""
        for obj in plan.delete:
            metadata = obj["metadata"]
            try:
                await self._cluster.delete_revision(observed.key, metadata["name"], metadata["uid"])
            except ClusterError as error:
                overlook(error)
