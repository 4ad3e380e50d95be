"""A listening port with a cap on the connections it holds, TLS handshakes among them.

asyncio's own server counts nothing, and tells of a connection only after its handshake. Here each accepted connection
is a task from its first byte to its last. While there are as many as may be, the next one takes the place of the one
that asked longest ago, so that idle clients keep nobody out; the kernel's queue holds the rest.
"""

import asyncio
import functools
import logging
import socket
import ssl
from types import TracebackType
from typing import Any, Final, Self, cast

from aiohttp import web

from kvik_operator.serving.connection import Bounds, Connection

log = logging.getLogger(__name__)

BACKLOG: Final = 128
SHUTDOWN_SECONDS: Final = 1.0
"""For requests that are being answered when the port closes."""
TLS_CLOSE_SECONDS: Final = 2.0
"""For a client to agree that TLS ends."""
ACCEPT_AGAIN_SECONDS: Final = 1.0
"""After the system could not accept: out of files, mostly."""


class Port:
    """An async context manager. The address is taken when it is entered, and nobody is let in before `open`."""

    def __init__(self, app: web.Application, host: str, port: int, bounds: Bounds) -> None:
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=SHUTDOWN_SECONDS)
        self._address = (host, port)
        self._bounds = bounds
        self._room = asyncio.Semaphore(bounds.connections)
        self._context: ssl.SSLContext | None = None
        self._socket: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._serving: set[asyncio.Task[None]] = set()
        self._greeting: set[asyncio.Task[None]] = set()
        """Those of `_serving` that shake hands."""

    async def __aenter__(self) -> Self:
        family = socket.AF_INET6 if ":" in self._address[0] else socket.AF_INET
        self._socket = socket.create_server(self._address, family=family, backlog=BACKLOG)
        self._socket.setblocking(False)
        await self._runner.setup()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        first = self._greeting | ({self._accepting} if self._accepting is not None else set())
        await _cancelled(first)
        await self._runner.cleanup()
        await _cancelled(self._serving)
        assert self._socket is not None
        self._socket.close()

    @property
    def number(self) -> int:
        assert self._socket is not None, "use as an async context manager"
        number: int = self._socket.getsockname()[1]
        return number

    @property
    def connections(self) -> int:
        """Accepted and not ended, those that shake hands included."""
        return len(self._serving)

    def open(self, context: ssl.SSLContext | None) -> None:
        """From now on let clients in, by this TLS context (None: without TLS). Those that are in stay."""
        self._context = context
        if self._accepting is None:
            self._accepting = asyncio.create_task(self._accept())

    def leave(self) -> None:
        """End every connection there is, each after the request that is being answered."""
        for task in self._greeting:
            task.cancel()
        assert self._runner.server is not None, "use as an async context manager"
        for connection in self._runner.server.connections:
            assert isinstance(connection, Connection)
            connection.leave()

    async def _accept(self) -> None:
        assert self._socket is not None
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, _ = await loop.sock_accept(self._socket)
            except OSError as error:
                log.warning("no connection could be accepted", extra={"error": str(error)})
                await asyncio.sleep(ACCEPT_AGAIN_SECONDS)
                continue
            await self._make_room(accepted)
            task = asyncio.create_task(self._serve(accepted))
            self._serving.add(task)
            task.add_done_callback(functools.partial(self._served, accepted))

    async def _make_room(self, accepted: socket.socket) -> None:
        if self._room.locked():
            self._end_one()
        try:
            await self._room.acquire()
        except asyncio.CancelledError:
            accepted.close()
            raise

    def _end_one(self) -> None:
        """The one that asked longest ago, an idle one if there is one. Handshakes have a bound of their own."""
        assert self._runner.server is not None
        if connections := cast(list[Connection], self._runner.server.connections):
            min(connections, key=lambda connection: (connection.busy, connection.asked_at)).leave()

    async def _serve(self, accepted: socket.socket) -> None:
        """From accepting to the end. A client that TLS does not let in is no event: anybody could fill the log."""
        assert self._runner.server is not None
        connection = Connection(self._runner.server, self._bounds)
        task = asyncio.current_task()
        assert task is not None
        self._greeting.add(task)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(lambda: connection, accepted, **self._tls())
        except OSError as error:
            log.debug("a client was not let in", extra={"error": str(error)})
            return
        finally:
            self._greeting.discard(task)
        try:
            await connection.ended
        finally:
            connection.abort()

    def _served(self, accepted: socket.socket, task: asyncio.Task[None]) -> None:
        self._serving.discard(task)
        self._room.release()
        accepted.close()  # nobody else does if the task never began

    def _tls(self) -> dict[str, Any]:
        if self._context is None:
            return {}
        return {
            "ssl": self._context,
            "ssl_handshake_timeout": self._bounds.handshake_seconds,
            "ssl_shutdown_timeout": TLS_CLOSE_SECONDS,
        }


async def _cancelled(tasks: set[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
