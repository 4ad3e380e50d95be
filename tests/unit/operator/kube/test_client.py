"""What goes over the wire for each intent, and that a replica that is not the leader sends nothing."""

from collections.abc import Mapping
from typing import Any, cast

import pytest

from kvik_operator.errors import NotFound, Unavailable
from kvik_operator.kube.client import ClusterClient
from kvik_operator.kube.limiter import TokenBucket
from kvik_operator.kube.transport import Transport
from kvik_operator.names import ChildKind, PoolKey
from kvik_operator.reconcile.types import PlannedEvent

KEY = PoolKey("demo", "chat")


class FakeTransport:
    """`answer`: to every request; of a list, the next one to each."""

    def __init__(self, answer: Mapping[str, Any] | Exception | list[Mapping[str, Any]]) -> None:
        self.answer = answer
        self.calls: list[tuple[str, str, dict[str, Any]]] = []

    async def request(self, what: str, method: str, path: str, **options: Any) -> Any:
        self.calls.append((method, path, options))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer.pop(0) if isinstance(self.answer, list) else self.answer


class Leader:
    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def seconds_left(self) -> float:
        return self.seconds


class Ignore:
    def emit(self, event: PlannedEvent) -> None: ...

    def wrote(self, what: str, outcome: str) -> None: ...


def client(transport: FakeTransport, leader: float = 12.0, stored: list[Any] | None = None) -> ClusterClient:
    """`leader`: seconds that it surely is one."""
    heard: list[Any] = [] if stored is None else stored
    return ClusterClient(
        cast(Transport, transport),
        bucket=TokenBucket(1000, 1000, lambda: 0.0),
        fence=Leader(leader),
        emitter=Ignore(),
        counter=Ignore(),
        stored=lambda kind, obj: heard.append((kind, obj)),
    )


POOL = {"metadata": {"namespace": "demo", "name": "chat", "uid": "u", "resourceVersion": "41"}}
DEPLOYMENT = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"namespace": "demo", "name": "chat"}}


async def test_apply_is_a_forced_server_side_apply_by_our_field_manager() -> None:
    transport, stored = FakeTransport({"metadata": {"uid": "u"}}), list[Any]()
    await client(transport, stored=stored).apply(DEPLOYMENT)
    ((method, path, options),) = transport.calls
    assert (method, path) == ("PATCH", "/apis/apps/v1/namespaces/demo/deployments/chat")
    assert options["content_type"] == "application/apply-patch+yaml; charset=utf-8"
    assert dict(options["query"]) == {"fieldManager": "kvik-operator", "force": "true"}
    assert stored == [(ChildKind.DEPLOYMENT, {"metadata": {"uid": "u"}})]


async def test_delete_names_the_uid_and_takes_absence_as_success() -> None:
    transport = FakeTransport(NotFound("x", 404, "NotFound", "gone"))
    await client(transport).delete(ChildKind.SERVICE_ACCOUNT, KEY, "u1")
    ((method, path, options),) = transport.calls
    assert (method, path) == ("DELETE", "/api/v1/namespaces/demo/serviceaccounts/chat-engine")
    assert options["body"]["preconditions"] == {"uid": "u1"}


async def test_revisions_are_listed_by_the_pools_label_and_say_their_type() -> None:
    transport = FakeTransport({"items": [{"metadata": {"name": "chat-1"}}]})
    (found,) = await client(transport).list_revisions(KEY)
    assert found == {"apiVersion": "apps/v1", "kind": "ControllerRevision", "metadata": {"name": "chat-1"}}
    ((method, path, options),) = transport.calls
    assert (method, path) == ("GET", "/apis/apps/v1/namespaces/demo/controllerrevisions")
    assert dict(options["query"])["labelSelector"] == "kvik.dev/pool=chat"


@pytest.mark.parametrize(
    ("namespace", "where"),
    [
        ("demo", "/apis/autoscaling/v2/namespaces/demo/horizontalpodautoscalers"),
        (None, "/apis/autoscaling/v2/horizontalpodautoscalers"),
    ],
)
async def test_autoscalers_on_pools_are_listed_page_by_page(namespace: str | None, where: str) -> None:
    def page(token: str, *kinds: str) -> Mapping[str, Any]:
        return {"metadata": {"continue": token}, "items": [{"spec": {"scaleTargetRef": {"kind": k}}} for k in kinds]}

    pages = [page("more", "Deployment", "InferencePool"), page("", "InferencePool")]
    transport = FakeTransport(pages)
    assert len(await client(transport).list_autoscalers(namespace)) == 2
    assert [path for _, path, _ in transport.calls] == [where] * 2
    assert [dict(options["query"]).get("continue") for _, _, options in transport.calls] == [None, "more"]


async def test_a_revision_is_applied_and_deleted_as_a_child_is_and_never_stored() -> None:
    transport, stored = FakeTransport({}), list[Any]()
    revision = {**DEPLOYMENT, "kind": "ControllerRevision"}
    await client(transport, stored=stored).apply_revision(revision)
    await client(transport, stored=stored).delete_revision(KEY, "chat", "u1")
    (apply, delete), where = transport.calls, "/apis/apps/v1/namespaces/demo/controllerrevisions/chat"
    assert (apply[:2], delete[:2]) == (("PATCH", where), ("DELETE", where))
    assert dict(apply[2]["query"]) == {"fieldManager": "kvik-operator", "force": "true"}
    assert delete[2]["body"]["preconditions"] == {"uid": "u1"}
    assert stored == []


async def test_status_is_patched_against_the_version_it_was_computed_from() -> None:
    transport = FakeTransport({})
    await client(transport).patch_status(KEY, {"replicas": 1}, "41")
    ((_, path, options),) = transport.calls
    assert path.endswith("/inferencepools/chat/status")
    assert options["body"] == {"status": {"replicas": 1}, "metadata": {"resourceVersion": "41"}}


async def test_scaling_is_written_by_the_autoscaler_and_nobody_else() -> None:
    transport = FakeTransport({})
    await client(transport).scale_pool(POOL, 3)
    ((_, path, options),) = transport.calls
    assert path.endswith("/inferencepools/chat/scale")
    assert dict(options["query"]) == {"fieldManager": "kvik-autoscaler"}
    assert options["body"] == {"metadata": {"resourceVersion": "41"}, "spec": {"replicas": 3}}


async def test_a_replica_that_is_not_the_leader_writes_nothing() -> None:
    transport = FakeTransport({})
    follower = client(transport, leader=0.0)
    for write in (
        follower.apply(DEPLOYMENT),
        follower.apply_revision(DEPLOYMENT),
        follower.delete_revision(KEY, "chat-1", "u"),
        follower.delete(ChildKind.SERVICE, KEY, "u"),
        follower.patch_status(KEY, {}, None),
        follower.annotate_pod("demo", "chat-1", {"a": "b"}),
        follower.scale_pool(POOL, 1),
    ):
        with pytest.raises(Unavailable, match="NotLeader"):
            await write
    assert transport.calls == []


async def test_no_write_is_waited_for_until_another_replica_may_lead() -> None:
    """One begun at the last moment with the whole request time-out could land after the other's first write."""
    transport = FakeTransport({"metadata": {}})
    leader = client(transport, leader=5.5)
    await leader.apply(DEPLOYMENT)
    await leader.patch_status(KEY, {}, None)
    await leader.scale_pool(POOL, 1)
    assert [options["timeout"] for _, _, options in transport.calls] == [5.5] * 3


async def test_a_fresh_read_of_what_is_not_there_is_none() -> None:
    transport = FakeTransport(NotFound("x", 404, "NotFound", 'inferencepools.kvik.dev "chat" not found'))
    assert await client(transport).read_pool(KEY) is None
    assert await client(transport).read_child(ChildKind.SERVICE, KEY) is None


async def test_the_schema_is_read_as_the_api_server_publishes_it() -> None:
    kind = {"group": "kvik.dev", "kind": "InferencePool", "version": "v1alpha1"}
    schema = {"properties": {"spec": {}}, "x-kubernetes-group-version-kind": [kind]}
    transport = FakeTransport({"components": {"schemas": {"pool": schema}}})
    assert {"model", "batching", "template"} <= await client(transport).fields_not_served()
    assert [call[:2] for call in transport.calls] == [("GET", "/openapi/v3/apis/kvik.dev/v1alpha1")]


async def test_a_schema_that_is_not_published_yet_is_asked_for_again() -> None:
    with pytest.raises(Unavailable, match="NotPublished"):
        await client(FakeTransport({})).fields_not_served()


async def test_an_api_that_is_not_served_says_nothing_about_its_pools() -> None:
    unserved = NotFound("x", 404, "NotFound", "the server could not find the requested resource")
    with pytest.raises(NotFound):
        await client(FakeTransport(unserved)).read_pool(KEY)
