"""An API server in memory for the reconcile flow: the store and the writes of it, with faults on demand.

It keeps what is applied and checks nothing; tests/faults tries the same against a real API server.
"""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any

from kvik_operator.errors import ClusterError
from kvik_operator.names import OPTIONAL_KINDS, ChildKind, PoolKey
from kvik_operator.reconcile.types import EngineInfo, PlannedEvent, ScalingReport

Object = Mapping[str, Any]


class FakeCluster:
    """Implements the Protocols Store, Cluster and Board of reconcile/types.py for one pool."""

    def __init__(self, pool: dict[str, Any] | None = None) -> None:
        self.stored_pool = pool
        self.children: dict[ChildKind, dict[str, Any]] = {}
        self.unseen: dict[ChildKind, dict[str, Any]] = {}
        """Objects that exist without being in the store: other people's, or not watched yet."""
        self.revisions: dict[str, dict[str, Any]] = {}
        """All ControllerRevisions with the pool's label, by name."""
        self.optional_kinds = OPTIONAL_KINDS
        """Those that the API server has."""
        self.not_served: frozenset[str] = frozenset()
        """Fields of the spec that the CRD does not have."""
        self.engine_pods: list[dict[str, Any]] = []
        self.failures: dict[str, ClusterError] = {}
        """By call: `apply Deployment`, `patch_status`, `annotate_pod`, `read_pool`, ..."""
        self.calls: list[str] = []
        self.events: list[PlannedEvent] = []
        self.fresh_pool: dict[str, Any] | str | None = "as stored"
        self.report: ScalingReport | None = None
        """Of the pool that is stored at first."""
        self._first_uid = None if pool is None else pool["metadata"]["uid"]
        self.infos: dict[str, EngineInfo] = {}
        self.in_flight: dict[str, int] = {}
        self.outdated_keys: set[str] = set()
        self.webhook: Callable[[dict[str, Any]], None] = lambda child: None
        """Changes what is applied on its way in, as a mutating webhook does."""

    def pool(self, key: PoolKey) -> Object | None:
        return self.stored_pool

    def child(self, key: PoolKey, kind: ChildKind) -> Object | None:
        return self.children.get(kind)

    def pods(self, key: PoolKey) -> Sequence[Object]:
        return self.engine_pods

    def served(self) -> frozenset[ChildKind]:
        return self.optional_kinds

    def forget_pool(self, key: PoolKey, uid: str) -> None:
        if self.stored_pool is not None and self.stored_pool["metadata"]["uid"] == uid:
            self.stored_pool = None

    def scaling(self, key: PoolKey, pool_uid: str) -> ScalingReport | None:
        return self.report if pool_uid == self._first_uid else None

    def info(self, pod_uid: str) -> EngineInfo | None:
        return self.infos.get(pod_uid)

    def keys_outdated(self, pod_uid: str) -> bool:
        return pod_uid in self.outdated_keys

    def work(self, pod_uid: str) -> int | None:
        return self.in_flight.get(pod_uid)

    async def apply(self, manifest: Object) -> Object:
        kind = ChildKind(manifest["kind"])
        self._call(f"apply {kind}")
        stored = deepcopy(dict(manifest))
        self.webhook(stored)
        before = self.children.get(kind)
        stored["metadata"]["uid"] = before["metadata"]["uid"] if before else f"uid-{kind}"
        stored["metadata"]["generation"] = before["metadata"]["generation"] + 1 if before else 1
        if before is not None and "status" in before:
            stored["status"] = before["status"]
        self.children[kind] = stored
        return stored

    async def delete(self, kind: ChildKind, key: PoolKey, uid: str) -> None:
        self._call(f"delete {kind}")
        assert self.children.pop(kind)["metadata"]["uid"] == uid

    async def list_revisions(self, key: PoolKey) -> Sequence[Object]:
        self._call("list ControllerRevisions")
        return [deepcopy(revision) for revision in self.revisions.values()]

    async def apply_revision(self, manifest: Object) -> None:
        self._call("apply ControllerRevision")
        stored = deepcopy(dict(manifest))
        name = stored["metadata"]["name"]
        before = self.revisions.get(name)
        assert before is None or before["data"] == stored["data"], "data is immutable"
        stored["metadata"]["uid"] = before["metadata"]["uid"] if before else f"uid-{name}"
        self.revisions[name] = stored

    async def delete_revision(self, key: PoolKey, name: str, uid: str) -> None:
        self._call("delete ControllerRevision")
        assert self.revisions.pop(name)["metadata"]["uid"] == uid

    async def patch_status(self, key: PoolKey, status: Object, resource_version: str | None) -> Object:
        self._call("patch_status")
        assert self.stored_pool is not None
        assert resource_version == self.stored_pool["metadata"]["resourceVersion"]
        self.stored_pool["status"] = merged(self.stored_pool.get("status") or {}, status)
        return self.stored_pool

    async def annotate_pod(self, namespace: str, name: str, annotations: Mapping[str, str | None]) -> None:
        self._call("annotate_pod")
        pod = next(pod for pod in self.engine_pods if pod["metadata"]["name"] == name)
        pod["metadata"]["annotations"] = merged(pod["metadata"].get("annotations", {}), annotations)

    async def read_pool(self, key: PoolKey) -> Object | None:
        self._call("read_pool")
        return self.stored_pool if isinstance(self.fresh_pool, str) else self.fresh_pool

    async def fields_not_served(self) -> frozenset[str]:
        self._call("read schema")
        return self.not_served

    async def read_child(self, kind: ChildKind, key: PoolKey) -> Object | None:
        self._call(f"read {kind}")
        return self.unseen.get(kind) or self.children.get(kind)

    def emit(self, event: PlannedEvent) -> None:
        self.events.append(event)

    def writes(self) -> list[str]:
        """The calls since the last time this was asked, without the reads."""
        calls, self.calls = self.calls, []
        return [call for call in calls if not call.startswith(("read", "list"))]

    @property
    def status(self) -> dict[str, Any]:
        assert self.stored_pool is not None
        status: dict[str, Any] = self.stored_pool["status"]
        return status

    def condition(self, type_: str) -> dict[str, Any]:
        found: dict[str, Any] = next(item for item in self.status["conditions"] if item["type"] == type_)
        return found

    def _call(self, name: str) -> None:
        self.calls.append(name)
        if name in self.failures:
            raise self.failures[name]


def merged(value: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """RFC 7386: `patch` over `value`, a None removes."""
    result = dict(value)
    for name, item in patch.items():
        if item is None:
            result.pop(name, None)
        elif isinstance(item, Mapping):
            before = result.get(name)
            result[name] = merged(before if isinstance(before, Mapping) else {}, item)
        else:
            result[name] = item
    return result
