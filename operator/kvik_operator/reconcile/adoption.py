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
    metadata = stored["metadata"]
    if "deletionTimestamp" in metadata:
        return Claim.GOING
    controllers = [owner for owner in metadata.get("ownerReferences") or () if owner.get("controller")]
    if controllers:
        owner = controllers[0]
        if owner.get("uid") == pool_uid:
            return Claim.OURS
        earlier = owner.get("kind") == "InferencePool" and owner.get("name") == key.name
        return Claim.GOING if earlier and _labelled(stored, key) else Claim.FOREIGN
    return Claim.OURS if _labelled(stored, key) else Claim.FOREIGN


def is_unowned(stored: Object, key: PoolKey, pool_uid: str) -> bool:
    """Ours to write, and without an owner: never had one, or lost it to `kubectl delete --cascade=orphan`."""
    owned = any(owner.get("controller") for owner in stored["metadata"].get("ownerReferences") or ())
    return not owned and claim(stored, key, pool_uid) is Claim.OURS


def _labelled(stored: Object, key: PoolKey) -> bool:
    return (stored["metadata"].get("labels") or {}).get(LABEL_POOL) == key.name
