"""A proxy between the operator and a real API server that logs every request and can misbehave on purpose.

The operator speaks plain HTTP to it; it speaks TLS with the administrator's certificate to the API server and acts for
the operator's service account by impersonation, so that the chart's RBAC rules are what is tested.

    with FaultProxy(admin_kubeconfig, service_account) as proxy:
        proxy.answer = lambda request: Answer(403) if request.is_watch else None
"""

import asyncio
import base64
import contextlib
import json
import socket
import ssl
import tempfile
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import aiohttp
from aiohttp import web

from tests.support.ended_server import end, listen
from tests.support.waiting import PATIENCE

_HOP_BY_HOP = frozenset({"connection", "transfer-encoding", "content-length", "host", "keep-alive", "content-encoding"})
_WRITES = frozenset({"POST", "PUT", "PATCH", "DELETE"})


@dataclass(frozen=True, slots=True)
class Request:
    """One request of the operator. `write` counts its writes from 1, without those of the Lease; None: no write."""

    method: str
    path: str
    query: Mapping[str, str]
    write: int | None

    @property
    def is_watch(self) -> bool:
        return self.query.get("watch") == "true"

    @property
    def is_lease(self) -> bool:
        return "/leases" in self.path

    @property
    def is_event(self) -> bool:
        return "/events" in self.path

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


@dataclass(frozen=True, slots=True)
class Answer:
    """What the proxy says in the API server's place."""

    status: int
    reason: str = "Fault"
    message: str = "the fault proxy says so"
    retry_after: int | None = None


class FaultProxy:
    """All hooks may be set from the test's thread at any time, and None is how they begin.

    `answer` replaces an answer; `before_write` and `after_write` are called around the forwarding of a write, the
    latter before the operator sees the answer; `keep_event` drops a watch event by returning False; `silent` lets
    watches stay open and bring nothing.
    """

    def __init__(self, admin: Path, service_account: tuple[str, str] | None = None) -> None:
        self._admin = json.loads(admin.read_text())
        self._service_account = service_account
        self.requests: list[Request] = []
        self.answer: Callable[[Request], Answer | None] | None = None
        self.before_write: Callable[[Request], None] | None = None
        self.after_write: Callable[[Request], None] | None = None
        self.keep_event: Callable[[Mapping[str, Any]], bool] | None = None
        self.silent = False
        self._writes = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault-proxy", daemon=True)
        self._session: aiohttp.ClientSession | None = None
        self._runner: web.AppRunner | None = None
        self._listening: socket.socket | None = None
        self._watches: set[asyncio.Task[Any]] = set()

    def __enter__(self) -> Self:
        self._thread.start()
        self._call(self._start())
        return self

    def __exit__(self, *_: object) -> None:
        self._call(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    @property
    def url(self) -> str:
        assert self._listening is not None
        return f"http://127.0.0.1:{self._listening.getsockname()[1]}"

    def write_kubeconfig(self, target: Path) -> Path:
        """For the operator: this proxy, and no credentials."""
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "faulty",
            "clusters": [{"name": "faulty", "cluster": {"server": self.url}}],
            "users": [{"name": "nobody", "user": {}}],
            "contexts": [{"name": "faulty", "context": {"cluster": "faulty", "user": "nobody"}}],
        }
        target.write_text(json.dumps(config))
        return target

    def writes(self) -> list[Request]:
        """The writes so far, but those of the Lease."""
        return [request for request in list(self.requests) if request.write is not None]

    def cut_watches(self) -> None:
        """Break the connections of all watches."""

        async def cut() -> None:
            for watch in list(self._watches):
                watch.cancel()

        self._call(cut())

    def behave(self) -> None:
        """No faults any more."""
        self.answer = self.before_write = self.after_write = self.keep_event = None
        self.silent = False

    def _call(self, coroutine: Any) -> None:
        future: Future[None] = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        future.result(PATIENCE)

    async def _start(self) -> None:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=_client_tls(self._admin), limit=0),
            timeout=aiohttp.ClientTimeout(total=None),
            auto_decompress=False,
        )
        app = web.Application(client_max_size=16 * 1024 * 1024)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.2)
        self._listening = await listen(self._runner, "127.0.0.1", 0)

    async def _stop(self) -> None:
        # Requests may be under way to a server that does not answer: nothing of them may outlive the loop.
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)
        if self._runner is not None and self._listening is not None:
            await end(self._runner, self._listening)
        if self._session is not None:
            assert isinstance(self._session.connector, aiohttp.TCPConnector)
            await self._session.connector.close(abort_ssl=True)  # else TLS connections outlive the loop
            await self._session.close()
            await asyncio.sleep(0.1)

    async def _handle(self, incoming: web.Request) -> web.StreamResponse:
        request = self._note(incoming)
        # Each hook is read once: the test's thread may take it away at any time.
        answer, before_write = self.answer, self.before_write
        said = answer(request) if answer is not None else None
        if said is not None:
            return _status(said)
        if request.write is not None and before_write is not None:
            before_write(request)
        try:
            return await self._forward(incoming, request)
        except aiohttp.ClientError:
            # As the operator would see it without us: the connection breaks.
            if incoming.transport is not None:
                incoming.transport.abort()
            return web.Response(status=502)

    def _note(self, incoming: web.Request) -> Request:
        number = None
        if incoming.method in _WRITES and "/leases" not in incoming.path:
            self._writes += 1
            number = self._writes
        request = Request(incoming.method, incoming.path, dict(incoming.query), number)
        self.requests.append(request)
        return request

    async def _forward(self, incoming: web.Request, request: Request) -> web.StreamResponse:
        assert self._session is not None
        headers = {name: value for name, value in incoming.headers.items() if name.lower() not in _HOP_BY_HOP}
        headers["Accept-Encoding"] = "identity"
        server = self._admin["clusters"][0]["cluster"]["server"]
        async with self._session.request(
            incoming.method,
            f"{server}{incoming.path_qs}",
            headers=[*headers.items(), *self._impersonation()],
            data=await incoming.read() or None,  # an empty body would get a Content-Type
        ) as upstream:
            if request.is_watch and upstream.status == 200:
                return await self._stream(incoming, upstream)
            body = await upstream.read()
            after_write = self.after_write
            if request.write is not None and after_write is not None:
                after_write(request)
            kept = {name: value for name, value in upstream.headers.items() if name.lower() not in _HOP_BY_HOP}
            return web.Response(status=upstream.status, body=body, headers=kept)

    async def _stream(self, incoming: web.Request, upstream: aiohttp.ClientResponse) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(incoming)
        task = asyncio.current_task()
        assert task is not None
        self._watches.add(task)
        try:
            buffer = b""
            # The operator may be gone, on purpose or not.
            with contextlib.suppress(ConnectionError):
                async for chunk in upstream.content.iter_any():
                    *lines, buffer = (buffer + chunk).split(b"\n")
                    for line in lines:
                        if line and self._passes(line):
                            await response.write(line + b"\n")
        finally:
            self._watches.discard(task)
        return response

    def _passes(self, line: bytes) -> bool:
        if self.silent:
            return False
        keep_event = self.keep_event
        return keep_event is None or keep_event(json.loads(line))

    def _impersonation(self) -> list[tuple[str, str]]:
        if self._service_account is None:
            return []
        namespace, name = self._service_account
        groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated")
        user = ("Impersonate-User", f"system:serviceaccount:{namespace}:{name}")
        return [user, *(("Impersonate-Group", group) for group in groups)]


def _status(answer: Answer) -> web.Response:
    body = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "reason": answer.reason,
        "message": answer.message,
        "code": answer.status,
    }
    headers = {} if answer.retry_after is None else {"Retry-After": str(answer.retry_after)}
    return web.json_response(body, status=answer.status, headers=headers)


def _client_tls(admin: Mapping[str, Any]) -> ssl.SSLContext:
    """From a kubeconfig with embedded certificates."""
    cluster, user = admin["clusters"][0]["cluster"], admin["users"][0]["user"]
    authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
    context = ssl.create_default_context(cadata=authority)
    with tempfile.TemporaryDirectory() as folder:
        pair = Path(folder) / "client.pem"
        pair.touch(mode=0o600)
        pair.write_bytes(
            b"".join(base64.b64decode(user[name]) for name in ("client-certificate-data", "client-key-data"))
        )
        context.load_cert_chain(pair)
    return context
