"""The transport against a real HTTP server: what is sent, and what each way of failing becomes."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web

from kvik_operator.errors import Conflict, NotFound, Unavailable
from kvik_operator.kube import transport as transport_module
from kvik_operator.kube.kinds import watched
from kvik_operator.kube.leases import LeaseClient
from kvik_operator.kube.metadata import list_versions
from kvik_operator.kube.store import ObjectId, Store
from kvik_operator.kube.transport import APPLY, METADATA_LIST, Transport, connect
from kvik_operator.names import OPTIONAL_KINDS
from tests.support.waiting import PATIENCE, settle

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Server:
    def __init__(self) -> None:
        self.seen: list[web.Request] = []
        self.bodies: list[bytes] = []
        self.handler: Handler = self.empty

    async def empty(self, _: web.Request) -> web.StreamResponse:
        return web.json_response({})

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.seen.append(request)
        self.bodies.append(await request.read())
        return await self.handler(request)


@pytest.fixture
async def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Server, Transport]]:
    server, app = Server(), web.Application()
    app.router.add_route("*", "/{path:.*}", server.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    kubeconfig = tmp_path / "config"
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{runner.addresses[0][1]}"}}],
        "users": [{"name": "u", "user": {"token": "secret"}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    }
    kubeconfig.write_text(json.dumps(config))
    monkeypatch.setattr("kubernetes.aio.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(kubeconfig))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    transport = await connect(user_agent="kvik-operator/test", timeout=5.0)
    yield server, transport
    await transport.close()
    await runner.cleanup()


async def test_a_request_carries_the_token_and_says_who_asks(served: tuple[Server, Transport]) -> None:
    server, transport = served
    await transport.request("read", "GET", "/api/v1/pods", query=[("limit", "5")])
    (request,) = server.seen
    assert request.headers["Authorization"] == "Bearer secret"
    assert request.headers["User-Agent"] == "kvik-operator/test"
    assert request.path_qs == "/api/v1/pods?limit=5"


async def test_a_body_is_plain_json_with_its_nulls_whatever_the_content_type(served: tuple[Server, Transport]) -> None:
    server, transport = served
    body = {"spec": {"replicas": None, "args": []}}
    await transport.request("apply", "PATCH", "/x", body=body, content_type=APPLY)
    assert server.seen[0].headers["Content-Type"] == "application/apply-patch+yaml; charset=utf-8"
    assert json.loads(server.bodies[0]) == body


async def test_any_text_is_applied_as_yaml_reads_it(served: tuple[Server, Transport]) -> None:
    """The API server takes an apply for YAML, without pairs of escapes for an emoji or raw control characters."""
    server, transport = served
    body = {"value": "".join(map(chr, range(0x100))) + "\u2028\u202e\u200b\ufeff\uffff\U0001f600" + "\\ud83d\\ude00"}
    await transport.request("apply", "PATCH", "/x", body=body, content_type=APPLY)
    assert json.loads(server.bodies[0]) == body
    assert yaml.safe_load(server.bodies[0]) == body
    assert b"\\ud83d\\ude00" not in server.bodies[0].replace(b"\\\\", b"")


async def test_an_answer_other_than_success_is_the_operators_own_error(served: tuple[Server, Transport]) -> None:
    server, transport = served

    async def missing(_: web.Request) -> web.StreamResponse:
        return web.json_response({"kind": "Status", "reason": "NotFound", "message": "no such pod"}, status=404)

    server.handler = missing
    with pytest.raises(NotFound, match="no such pod"):
        await transport.request("read Pod demo/x", "GET", "/api/v1/namespaces/demo/pods/x")


async def test_a_server_that_hangs_is_given_up_after_the_time_limit(served: tuple[Server, Transport]) -> None:
    server, transport = served

    async def hang(_: web.Request) -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError

    server.handler = hang
    with pytest.raises(Unavailable, match="no answer"):
        await asyncio.wait_for(transport.request("read", "GET", "/x", timeout=0.1), PATIENCE)


async def test_a_call_may_shorten_the_time_limit_and_never_lengthen_it(
    served: tuple[Server, Transport], monkeypatch: pytest.MonkeyPatch
) -> None:
    server, transport = served

    async def hang(_: web.Request) -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError

    server.handler = hang
    monkeypatch.setattr(transport, "_timeout", 0.1)
    with pytest.raises(Unavailable, match="no answer"):
        await asyncio.wait_for(transport.request("read", "GET", "/x", timeout=600.0), PATIENCE)


async def test_a_broken_connection_and_a_broken_answer_are_unavailable(served: tuple[Server, Transport]) -> None:
    server, transport = served

    async def broken(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    async def nonsense(_: web.Request) -> web.StreamResponse:
        return web.Response(text="<html>")

    for server.handler in (broken, nonsense):
        with pytest.raises(Unavailable):
            await transport.request("read", "GET", "/x")


async def test_a_metadata_list_asks_for_metadata_by_selector_and_follows_the_pages(
    served: tuple[Server, Transport],
) -> None:
    server, transport = served

    async def pages(request: web.Request) -> web.StreamResponse:
        name = "b" if request.query.get("continue") else "a"
        item = listed(name, {"kvik.dev/pool": "chat"})
        return web.json_response({"metadata": {"continue": "next" if name == "a" else ""}, "items": [item]})

    server.handler = pages
    (pods,) = [kind for kind in watched(()) if kind.kind == "Pod"]
    want = {ObjectId("Pod", "demo", name, f"u-{name}"): "7" for name in ("a", "b")}
    assert await list_versions(transport, pods, "demo") == want
    first, second = server.seen
    assert first.headers["Accept"] == METADATA_LIST
    assert first.path == "/api/v1/namespaces/demo/pods"
    assert first.query["labelSelector"] == "kvik.dev/pool"
    assert second.query["continue"] == "next"


def listed(name: str, labels: dict[str, str]) -> dict[str, Any]:
    metadata = {"namespace": "demo", "name": name, "uid": f"u-{name}", "resourceVersion": "7", "labels": labels}
    return {"metadata": metadata}


async def test_an_object_whose_pool_label_is_empty_is_nobodys_in_a_list_too(served: tuple[Server, Transport]) -> None:
    """`kubectl label pod x kvik.dev/pool=` by anybody once made liveness fail for ever: listed, and never stored."""
    server, transport = served
    items = [listed("x", {"kvik.dev/pool": ""}), listed("chat-1", {"kvik.dev/pool": "chat"})]

    async def all_of_them(_: web.Request) -> web.StreamResponse:
        return web.json_response({"metadata": {}, "items": items})

    server.handler = all_of_them
    store = Store()
    for kind in watched(OPTIONAL_KINDS):
        for item in items:
            store.upsert(kind.kind, {**item, "kind": kind.kind})
        assert await list_versions(transport, kind, None) == store.versions(kind.kind)


async def test_a_lease_is_replaced_as_it_was_read(served: tuple[Server, Transport]) -> None:
    server, transport = served

    async def conflict(_: web.Request) -> web.StreamResponse:
        return web.json_response({"reason": "Conflict", "message": "modified"}, status=409)

    server.handler = conflict
    leases = LeaseClient(transport, "kvik-system", "kvik-operator", timeout=1.0)
    read = {"metadata": {"name": "kvik-operator", "resourceVersion": "5"}, "spec": {"holderIdentity": "other"}}
    with pytest.raises(Conflict):
        await leases.replace(read, {"holderIdentity": "me"})
    assert server.seen[0].method == "PUT"
    assert server.seen[0].path == "/apis/coordination.k8s.io/v1/namespaces/kvik-system/leases/kvik-operator"
    sent = json.loads(server.bodies[0])
    assert (sent["metadata"]["resourceVersion"], sent["spec"]) == ("5", {"holderIdentity": "me"})


async def test_a_start_that_is_ended_while_it_waits_for_the_credentials_keeps_nobody_from_them() -> None:
    """A wait in a thread of its own took the lock after it was cancelled, and whoever came next never ended."""
    with transport_module._LOADING:
        waiting = asyncio.create_task(connect(user_agent="kvik-operator/test", timeout=5.0))
        await settle()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    await settle(100)
    assert not transport_module._LOADING.locked()
