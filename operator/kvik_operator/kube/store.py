"""The watched state of the cluster, trimmed: pools, their children and their pods. Thread-safe; reads never block.

Written by the watches and the relist, read by everybody. An object belongs to the pool that its label names, and is
kept under its own uid, so that a deletion seen late never removes a successor of the same name. Nor does the answer to
a write of ours, when it comes after the watch has told of the deletion, bring back what is gone.
"""

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from kvik_operator.kube.kinds import POD
from kvik_operator.kube.trim import trim
from kvik_operator.names import KIND, LABEL_POOL, OPTIONAL_KINDS, ChildKind, PoolKey, child_name

Object = Mapping[str, Any]

MAX_GONE: Final = 4096
"""Deletions that are remembered, the latest ones."""


@dataclass(frozen=True, slots=True)
class ObjectId:
    """What one object is, in the store and in a LIST."""

    kind: str
    namespace: str
    name: str
    uid: str


@dataclass(slots=True)
class _Entry:
    pool: Object | None = None
    objects: dict[tuple[str, str], Object] = field(default_factory=dict)
    """Children and pods by (kind, name)."""

    def empty(self) -> bool:
        return self.pool is None and not self.objects


def owner_key(kind: str, obj: Object) -> PoolKey | None:
    """The pool an object belongs to; None for an object whose pool label is absent or empty."""
    metadata = obj["metadata"]
    name = metadata["name"] if kind == KIND else (metadata.get("labels") or {}).get(LABEL_POOL)
    return PoolKey(metadata["namespace"], name) if name else None


class Store:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: dict[PoolKey, _Entry] = {}
        self._owners: dict[tuple[str, str, str], PoolKey] = {}
        """The pool by (kind, namespace, name) of the object: labels can change hands."""
        self._gone: OrderedDict[str, str] = OrderedDict()
        """The resourceVersion at which the watch told of a deletion, by uid. An object that only lost its label, which
        looks the same, comes back in a newer one."""
        self._served: frozenset[ChildKind] = frozenset()

    def served(self) -> frozenset[ChildKind]:
        """Of the kinds that a cluster need not have, those that are watched, since this one has them."""
        return self._served

    def serve(self, kinds: frozenset[ChildKind]) -> frozenset[PoolKey]:
        """From now on these are watched; of others nothing is kept. Returns the pools that had such objects."""
        with self._lock:
            self._served = kinds
        unserved = [identity for kind in OPTIONAL_KINDS - kinds for identity in self.versions(kind)]
        return frozenset().union(*map(self.forget, unserved))

    def pool(self, key: PoolKey) -> Object | None:
        with self._lock:
            entry = self._entries.get(key)
            return entry.pool if entry else None

    def child(self, key: PoolKey, kind: ChildKind) -> Object | None:
        with self._lock:
            entry = self._entries.get(key)
            return entry.objects.get((kind, child_name(kind, key))) if entry else None

    def pods(self, key: PoolKey) -> Sequence[Object]:
        with self._lock:
            entry = self._entries.get(key)
            return [obj for (kind, _), obj in entry.objects.items() if kind == POD] if entry else []

    def keys(self) -> set[PoolKey]:
        """Pools that exist, and pools of which only children are left."""
        with self._lock:
            return set(self._entries)

    def pool_keys(self) -> set[PoolKey]:
        with self._lock:
            return {key for key, entry in self._entries.items() if entry.pool is not None}

    def counts(self) -> tuple[int, int]:
        """Pools and pods, for the metrics page."""
        with self._lock:
            pools = sum(entry.pool is not None for entry in self._entries.values())
            pods = sum(kind == POD for entry in self._entries.values() for kind, _ in entry.objects)
            return pools, pods

    def upsert(self, kind: str, obj: Object) -> frozenset[PoolKey]:
        """Keep the object unless a newer version of it is here; returns the pools it belongs and belonged to."""
        key = owner_key(kind, obj)
        if key is None:
            return self.remove(kind, obj)
        trimmed, name = trim(kind, obj), obj["metadata"]["name"]
        with self._lock:
            previous = self._owners.get((kind, key.namespace, name))
            known = self._get(kind, previous, name)
            if self._came_too_late(trimmed) or (known is not None and _is_older(trimmed, known)):
                return frozenset({key})
            if previous is not None and previous != key:
                self._drop(kind, previous, name)
            entry = self._entries.setdefault(key, _Entry())
            if kind == KIND:
                entry.pool = trimmed
            else:
                entry.objects[kind, name] = trimmed
            self._owners[kind, key.namespace, name] = key
            return frozenset({key, previous or key})

    def remove(self, kind: str, obj: Object) -> frozenset[PoolKey]:
        """Forget the object if it is this very one (by uid); returns the pools it belonged to."""
        key, metadata = owner_key(kind, obj), obj["metadata"]
        with self._lock:
            self._gone[metadata.get("uid", "")] = str(metadata.get("resourceVersion", ""))
            while len(self._gone) > MAX_GONE:
                self._gone.popitem(last=False)
        return self.forget(identify(kind, obj)) | (frozenset() if key is None else frozenset({key}))

    def forget_pool(self, key: PoolKey, uid: str) -> None:
        """The API server says that this very pool is not there."""
        self.forget(ObjectId(KIND, key.namespace, key.name, uid))

    def forget(self, identity: ObjectId) -> frozenset[PoolKey]:
        """Forget an object that is gone; returns the pool it belonged to, nothing if it was unknown."""
        kind, namespace, name, uid = identity.kind, identity.namespace, identity.name, identity.uid
        with self._lock:
            key = self._owners.get((kind, namespace, name))
            known = self._get(kind, key, name)
            if key is None or known is None or known["metadata"].get("uid", "") != uid:
                return frozenset()
            self._drop(kind, key, name)
            return frozenset({key})

    def versions(self, kind: str) -> dict[ObjectId, str]:
        """The resourceVersion of every object of one kind, as a metadata LIST gives it."""
        with self._lock:
            objects = [
                obj
                for entry in self._entries.values()
                for obj in ([entry.pool] if kind == KIND else entry.objects.values())
                if obj is not None and obj["kind"] == kind
            ]
        return {identify(kind, obj): str(obj["metadata"].get("resourceVersion", "")) for obj in objects}

    def _get(self, kind: str, key: PoolKey | None, name: str) -> Object | None:
        entry = self._entries.get(key) if key is not None else None
        if entry is None:
            return None
        return entry.pool if kind == KIND else entry.objects.get((kind, name))

    def _came_too_late(self, obj: Object) -> bool:
        gone = self._gone.get(obj["metadata"].get("uid", ""))
        return gone is not None and not is_newer_version(str(obj["metadata"].get("resourceVersion", "")), gone)

    def _drop(self, kind: str, key: PoolKey, name: str) -> None:
        entry = self._entries[key]
        if kind == KIND:
            entry.pool = None
        else:
            del entry.objects[kind, name]
        del self._owners[kind, key.namespace, name]
        if entry.empty():
            del self._entries[key]


def identify(kind: str, obj: Object) -> ObjectId:
    metadata = obj["metadata"]
    return ObjectId(kind, metadata["namespace"], metadata["name"], metadata.get("uid", ""))


def is_newer_version(candidate: str, than: str) -> bool:
    """Resource versions compare as numbers (guaranteed by Kubernetes since 1.35, true of every release before)."""
    if candidate.isdecimal() and than.isdecimal():
        return int(candidate) > int(than)
    return candidate != than


def _is_older(obj: Object, known: Object) -> bool:
    """A list served from a lagging cache must not overwrite what a watch already brought."""
    if obj["metadata"].get("uid") != known["metadata"].get("uid"):
        return False
    mine, theirs = (str(item["metadata"].get("resourceVersion", "")) for item in (obj, known))
    return mine.isdecimal() and theirs.isdecimal() and int(mine) < int(theirs)
