"""Whether an object of a child's name is ours to write. Pure."""

from enum import StrEnum

from kvik_operator.names import LABEL_POOL, PoolKey
from kvik_operator.reconcile.types import Object


class Claim(StrEnum):
    OURS = "ours"
    GOING = "going"
    """It is being deleted, or belongs to an earlier pool of this name and soon will be."""
    FOREIGN = "foreign"


def claim(stored: Object, key: PoolKey, pool_uid: str) -> Claim:
    """Ours: controlled by this pool, or labelled for it and controlled by nobody. Anything else stays untouched."""
    if "deletionTimestamp" in stored["metadata"]:
        return Claim.GOING
    owner = _controller(stored)
    if owner is not None:
        if owner.get("uid") == pool_uid:
            return Claim.OURS
        earlier = owner.get("kind") == "InferencePool" and owner.get("name") == key.name
        return Claim.GOING if earlier and _labelled(stored, key) else Claim.FOREIGN
    return Claim.OURS if _labelled(stored, key) else Claim.FOREIGN


def is_unowned(stored: Object, key: PoolKey, pool_uid: str) -> bool:
    """Ours to write, and without an owner: never had one, or lost it to `kubectl delete --cascade=orphan`."""
    return _controller(stored) is None and claim(stored, key, pool_uid) is Claim.OURS


def _controller(stored: Object) -> Object | None:
    """The owner reference of who manages it."""
    owners = stored["metadata"].get("ownerReferences") or ()
    return next((owner for owner in owners if owner.get("controller")), None)


def _labelled(stored: Object, key: PoolKey) -> bool:
    return (stored["metadata"].get("labels") or {}).get(LABEL_POOL) == key.name
