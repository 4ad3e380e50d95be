"""One TCP connection of a client, with the bounds that aiohttp's server leaves open.

aiohttp 3.14 has no timeout for a request's head, no cap on connections, keeps idle ones for an hour and answers a
malformed request in plain text; a client that reads nothing keeps its connection for ever. Here: 10 s and 16 KiB for a
head, a cap, 75 s idle, 60 s for a client to take something, errors as JSON.
"""

from __future__ import annotations

import asyncio
import resource
import socket
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import cast

from aiohttp import web
from aiohttp.http import RawRequestMessage
from aiohttp.web_request import BaseRequest

from kvik_engine.api import limits
from kvik_engine.api.error_body import PayloadError, error_response

_NO_HTTP = "The request is not valid HTTP."
_TOO_LARGE = "The request's headers are too large."
_CLEANUP_SECONDS = 1.0
"""For handlers that still run when the application is torn down; draining has waited for them before."""


class Connection(web.RequestHandler):
    """aiohttp's protocol, stricter about heads."""

    def __init__(self, server: web.Server, *, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(
            server,
            loop=loop,
            keepalive_timeout=limits.IDLE_SECONDS,
            max_headers=limits.MAX_HEADERS,
            auto_decompress=False,
            lingering_time=1.0,
            access_log=None,  # type: ignore[arg-type]
        )
        self._server = server
        self._head_bytes = 0
        self._heads = 0
        self._head_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if len(self._server.connections) >= max_connections():
            cast(asyncio.Transport, transport).abort()  # uvloop's transports are no subclass of asyncio's
            return
        super().connection_made(transport)
        self._expect_head()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._head_came()
        self._stop_write_timer()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """The buffers to the client are full, whatever is being written: it has a minute to make room for more."""
        super().pause_writing()
        self._write_timer = self._loop.call_later(limits.WRITE_SECONDS, self._nothing_taken)

    def resume_writing(self) -> None:
        self._stop_write_timer()
        super().resume_writing()

    def data_received(self, data: bytes) -> None:
        if self._waiter is not None and not self._messages:  # it waits for a request, so this is of a head
            self._head_bytes += len(data)
            if self._head_timer is None:
                self._expect_head()
        super().data_received(data)
        self._fail_broken_body()
        if self._request_count != self._heads:
            self._heads = self._request_count
            self._head_came()
        elif self._head_timer is not None and self._head_bytes > limits.MAX_HEAD_BYTES:
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, _TOO_LARGE)

    def _fail_broken_body(self) -> None:
        """aiohttp queues broken chunk framing as a next request, and lets the handler wait for the rest of the body."""
        if not self._messages or isinstance(self._messages[-1][0], RawRequestMessage):
            return
        if len(self._messages) > 1:
            body = self._messages[-2][1]
        elif self._current_request is not None:
            body = self._current_request.content
        else:
            return
        if not body.is_eof():
            self._messages.pop()
            body.set_exception(PayloadError(HTTPStatus.BAD_REQUEST, _NO_HTTP))
            body.feed_eof()
            self.close()

    def handle_error(
        self, request: BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """A request that no handler saw, or that one failed on."""
        if status == HTTPStatus.BAD_REQUEST:
            response = error_response(PayloadError(HTTPStatus.BAD_REQUEST, _NO_HTTP))
        else:
            if not isinstance(exc, ConnectionError):  # else the client is gone, and nobody reads this
                self.log_exception("a handler failed", exc_info=exc)
            response = error_response(exc or RuntimeError())
        response.force_close()
        return response

    def _expect_head(self) -> None:
        self._head_timer = self._loop.call_later(limits.HEAD_SECONDS, self._head_is_late)

    def _head_came(self) -> None:
        self._head_bytes = 0
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_is_late(self) -> None:
        self._head_timer = None
        if self._head_bytes:
            self._refuse(HTTPStatus.REQUEST_TIMEOUT, "The request's headers took too long.")
        else:
            self.force_close()

    def _stop_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def _nothing_taken(self) -> None:
        """Losing the connection cancels the handler, which gives up its request."""
        self._write_timer = None
        if self.transport is not None:
            self.transport.abort()

    def _refuse(self, status: HTTPStatus, message: str) -> None:
        """Answer without a request object, then close."""
        self._head_came()
        if self.transport is not None:
            response = error_response(PayloadError(status, message))
            assert isinstance(response.body, bytes)
            own = {"Content-Length": str(len(response.body)), "Connection": "close"}
            lines = [f"HTTP/1.1 {status.value} {status.phrase}"]
            lines += [f"{name}: {value}" for name, value in {**response.headers, **own}.items()]
            self.transport.write("\r\n".join([*lines, "", ""]).encode() + response.body)
        self.force_close()


def raise_file_limit() -> None:
    """Let the process open as many files as full ports need, if it may; many containers start with 1,024."""
    wanted = 2 * limits.MAX_CONNECTIONS + limits.RESERVED_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    raised = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < raised:
        resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))


def max_connections() -> int:
    """Of one port, such that a flood on the other leaves files to answer a probe with."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return limits.MAX_CONNECTIONS
    return min(limits.MAX_CONNECTIONS, max(1, (files - limits.RESERVED_FILES) // 2))


async def listen(app: web.Application, server_socket: socket.socket) -> tuple[web.AppRunner, asyncio.Server]:
    """Serve `app` on a listening socket; handlers of clients that leave are cancelled."""
    runner = web.AppRunner(
        app, handle_signals=False, access_log=None, handler_cancellation=True, shutdown_timeout=_CLEANUP_SECONDS
    )
    await runner.setup()
    server = runner.server
    assert server is not None
    server.request_handler = _refuse_heads(server.request_handler)
    loop = asyncio.get_running_loop()
    return runner, await loop.create_server(lambda: Connection(server, loop=loop), sock=server_socket, backlog=1024)


def _refuse_heads(
    handler: Callable[[BaseRequest], Awaitable[web.StreamResponse]],
) -> Callable[[BaseRequest], Awaitable[web.StreamResponse]]:
    """What no middleware sees in time: a large head that came whole in one read, and an unknown `Expect`, which aiohttp
    refuses as text, and fails on where it is no UTF-8."""

    async def handle(request: BaseRequest) -> web.StreamResponse:
        if _head_size(request) > limits.MAX_HEAD_BYTES:
            response = error_response(PayloadError(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, _TOO_LARGE))
            response.force_close()
            return response
        if request.headers.get("Expect", "100-continue").lower() != "100-continue":
            return error_response(PayloadError(HTTPStatus.EXPECTATION_FAILED, "Expect can only be 100-continue."))
        return await handler(request)

    return handle


def _head_size(request: BaseRequest) -> int:
    """Bytes of the request's target and headers, as they came."""
    return len(request.raw_path) + sum(len(name) + len(value) + len(b": \r\n") for name, value in request.raw_headers)
