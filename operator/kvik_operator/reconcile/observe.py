"""Reads everything one reconcile looks at, once, from the store; past it only what a decision must not be without."""

from dataclasses import replace
from datetime import datetime

from kvik_operator.crd.effective import effective
from kvik_operator.crd.inferencepool import InferencePool
from kvik_operator.errors import Refused
from kvik_operator.names import ChildKind, PoolKey
from kvik_operator.reconcile.adoption import Claim, claim
from kvik_operator.reconcile.types import Cluster, Object, Observed, Store


def observe(key: PoolKey, raw: Object, store: Store, now: datetime) -> Observed:
    """Raises PoolError if the pool's spec cannot be read."""
    pool = InferencePool.from_object(raw)
    children = {kind: child for kind in ChildKind if (child := store.child(key, kind)) is not None}
    return Observed(
        key=key,
        pool=pool,
        raw_spec=raw["spec"],
        effective=effective(pool.spec, key.name),
        children=children,
        pods=tuple(store.pods(key)),
        served=store.served(),
        now=now,
    )


async def with_deployment(observed: Observed, cluster: Cluster) -> Observed:
    """With the Deployment that an operator which has just started may not have heard of: how far a roll has come is
    read off it. Raises ClusterError for the queue to retry.
    """
    if ChildKind.DEPLOYMENT in observed.children or not observed.pool.status.get("observedGeneration"):
        return observed
    try:
        found = await cluster.read_child(ChildKind.DEPLOYMENT, observed.key)
    except Refused:
        return observed  # apply meets the same answer and tells of it
    if found is None or claim(found, observed.key, observed.pool.uid) is not Claim.OURS:
        return observed
    return replace(observed, children={**observed.children, ChildKind.DEPLOYMENT: found})
