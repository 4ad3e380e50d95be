"""The calls the operator makes, each one line of intent: the reconcile flow's `Cluster`, the autoscaler's `/scale`.

Every write waits for the token bucket, then passes the fence: a replica that may no longer be leader writes nothing,
and waits for no answer longer than it surely is the leader.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from kvik_operator.crd.served_fields import fields_not_served
from kvik_operator.errors import NotFound, Unavailable
from kvik_operator.kube.limiter import TokenBucket
from kvik_operator.kube.paths import path, pool_path
from kvik_operator.kube.transport import APPLY, JSON, MERGE, Query, Transport
from kvik_operator.names import (
    API_VERSION,
    AUTOSCALER_FIELD_MANAGER,
    FIELD_MANAGER,
    KIND,
    LABEL_POOL,
    REVISION_API_VERSION,
    REVISION_KIND,
    REVISION_PLURAL,
    ChildKind,
    PoolKey,
    child_name,
)
from kvik_operator.reconcile.types import Object, PlannedEvent

MAX_LISTED: Final = 100
"""ControllerRevisions with a pool's label: ours are about ten. Where somebody's others hide them, the Deployment still
says what runs; an old spec is rendered anew then, and the history is not cut."""
AUTOSCALERS_A_PAGE: Final = 250
"""A cluster may have thousands, nearly all of them of other things, and only one page is in memory at a time."""
_MANAGER: Final[Query] = (("fieldManager", FIELD_MANAGER),)

log = logging.getLogger(__name__)


class Fence(Protocol):
    def seconds_left(self) -> float:
        """How long this process surely is the leader, if that is long enough to begin a write; else 0."""


class Emitter(Protocol):
    def emit(self, event: PlannedEvent) -> None: ...


class WriteCounter(Protocol):
    def wrote(self, what: str, outcome: str) -> None: ...


class ClusterClient:
    """Belongs to the event loop of its transport; all else is shared by all threads.

    `stored` hears of each object as the server now has it, so that what reads the store sees our own writes at once.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        bucket: TokenBucket,
        fence: Fence,
        emitter: Emitter,
        counter: WriteCounter,
        stored: Callable[[str, Object], object],
    ) -> None:
        self._transport = transport
        self._bucket = bucket
        self._fence = fence
        self._emitter = emitter
        self._counter = counter
        self._stored = stored

    async def apply(self, manifest: Object) -> Object:
        kind = ChildKind(manifest["kind"])
        applied = await self._apply(manifest, kind.plural)
        self._stored(kind, applied)
        return applied

    async def apply_revision(self, manifest: Object) -> None:
        await self._apply(manifest, REVISION_PLURAL)

    async def delete(self, kind: ChildKind, key: PoolKey, uid: str) -> None:
        name = child_name(kind, key)
        await self._delete(kind, path(kind.api_version, kind.plural, key.namespace, name), key.namespace, name, uid)

    async def delete_revision(self, key: PoolKey, name: str, uid: str) -> None:
        where = path(REVISION_API_VERSION, REVISION_PLURAL, key.namespace, name)
        await self._delete(REVISION_KIND, where, key.namespace, name, uid)

    async def _apply(self, manifest: Object, plural: str) -> Object:
        metadata = manifest["metadata"]
        return await self.write(
            f"apply {manifest['kind']} {metadata['namespace']}/{metadata['name']}",
            "PATCH",
            path(manifest["apiVersion"], plural, metadata["namespace"], metadata["name"]),
            query=(*_MANAGER, ("force", "true")),
            body=manifest,
            content_type=APPLY,
        )

    async def _delete(self, kind: str, where: str, namespace: str, name: str, uid: str) -> None:
        body = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {"uid": uid},
            "propagationPolicy": "Background",
        }
        try:
            await self.write(f"delete {kind} {namespace}/{name}", "DELETE", where, body=body)
        except NotFound:
            log.debug("already gone", extra={"kind": kind, "child": name})

    async def patch_status(self, key: PoolKey, status: Object, resource_version: str | None) -> Object:
        body: dict[str, Any] = {"status": status}
        if resource_version is not None:
            body["metadata"] = {"resourceVersion": resource_version}
        pool = await self.write(
            f"patch status of InferencePool {key}",
            "PATCH",
            pool_path(key, "status"),
            query=_MANAGER,
            body=body,
            content_type=MERGE,
        )
        self._stored(KIND, pool)
        return pool

    async def annotate_pod(self, namespace: str, name: str, annotations: Mapping[str, str | None]) -> None:
        try:
            await self.write(
                f"annotate Pod {namespace}/{name}",
                "PATCH",
                path("v1", "pods", namespace, name),
                query=_MANAGER,
                body={"metadata": {"annotations": dict(annotations)}},
                content_type=MERGE,
            )
        except NotFound:
            log.debug("already gone", extra={"kind": "Pod", "child": name})

    async def scale_pool(self, pool: Object, replicas: int) -> None:
        """Write the pool's `/scale` as the autoscaler; the reconcile flow carries it on to the Deployment.

        `pool` is what was decided on, freshly read; Conflict if it changed since.
        """
        metadata = pool["metadata"]
        key = PoolKey(metadata["namespace"], metadata["name"])
        await self.write(
            f"scale InferencePool {key}",
            "PATCH",
            pool_path(key, "scale"),
            query=(("fieldManager", AUTOSCALER_FIELD_MANAGER),),
            body={"metadata": {"resourceVersion": metadata["resourceVersion"]}, "spec": {"replicas": replicas}},
            content_type=MERGE,
        )

    async def read_pool(self, key: PoolKey) -> Object | None:
        try:
            pool: Object = await self._transport.request(f"read InferencePool {key}", "GET", pool_path(key))
        except NotFound as error:
            if error.is_about(key.name):
                return None
            raise  # the API is not served now: no reason to believe that its pools are gone
        return pool

    async def fields_not_served(self) -> frozenset[str]:
        what = f"read the schema of {API_VERSION}"
        fields = fields_not_served(await self._transport.request(what, "GET", f"/openapi/v3/apis/{API_VERSION}"))
        if fields is None:
            raise Unavailable(what, None, "NotPublished", f"no {KIND} in it yet")
        return fields

    async def read_child(self, kind: ChildKind, key: PoolKey) -> Object | None:
        name = child_name(kind, key)
        what = f"read {kind} {key.namespace}/{name}"
        try:
            child: Object = await self._transport.request(
                what, "GET", path(kind.api_version, kind.plural, key.namespace, name)
            )
        except NotFound:
            return None
        return child

    async def list_revisions(self, key: PoolKey) -> Sequence[Object]:
        answer = await self._transport.request(
            f"list ControllerRevisions of {key}",
            "GET",
            path(REVISION_API_VERSION, REVISION_PLURAL, key.namespace),
            query=(("labelSelector", f"{LABEL_POOL}={key.name}"), ("limit", str(MAX_LISTED))),
        )
        # The items of a list do not say their type.
        type_ = {"apiVersion": REVISION_API_VERSION, "kind": REVISION_KIND}
        return [{**type_, **item} for item in answer.get("items") or ()]

    async def list_autoscalers(self, namespace: str | None) -> Sequence[Object]:
        """The HorizontalPodAutoscalers on InferencePools of one namespace or (None) of all."""
        kind, found, token = ChildKind.AUTOSCALER, list[Object](), ""
        while True:
            answer = await self._transport.request(
                f"list HorizontalPodAutoscalers in {namespace or 'all namespaces'}",
                "GET",
                path(kind.api_version, kind.plural, namespace),
                query=(("limit", str(AUTOSCALERS_A_PAGE)), *((("continue", token),) if token else ())),
            )
            found += (item for item in answer.get("items") or () if item["spec"]["scaleTargetRef"]["kind"] == KIND)
            token = answer["metadata"].get("continue") or ""
            if not token:
                return found

    def emit(self, event: PlannedEvent) -> None:
        self._emitter.emit(event)

    async def write(
        self, what: str, method: str, url: str, *, query: Query = (), body: Object, content_type: str = JSON
    ) -> Object:
        """`what` names the call in errors, and with its first word in the metrics. Raises ClusterError."""
        await asyncio.sleep(self._bucket.reserve())
        seconds = self._fence.seconds_left()
        if seconds <= 0:
            raise Unavailable(what, None, "NotLeader", "another replica may be the leader now")
        outcome = "error"
        try:
            answer: Object = await self._transport.request(
                what, method, url, query=query, body=body, content_type=content_type, timeout=seconds
            )
            outcome = "ok"
        finally:
            self._counter.wrote(what.split(" ", 2)[0], outcome)
        log.debug("wrote", extra={"call": what})
        return answer
