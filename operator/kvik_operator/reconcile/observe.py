"""Reads everything one reconcile looks at, once, from the store."""

from datetime import datetime

from kvik_operator.crd.effective import effective
from kvik_operator.crd.inferencepool import InferencePool
from kvik_operator.names import ChildKind, PoolKey
from kvik_operator.reconcile.types import Object, Observed, Store


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
        now=now,
    )
