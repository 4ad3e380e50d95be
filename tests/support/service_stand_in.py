"""Stands in for a Service with several pods: a loopback port whose connections go to a backend that accepts them."""

import asyncio
import contextlib
import threading
from collections.abc import Sequence
from typing import Self

from tests.support.ended_server import accept_no_more
from tests.support.waiting import PATIENCE


class ServiceStandIn:
    """A context manager. `backends` are loopback ports, tried in turn; set them at any time."""

    def __init__(self, backends: Sequence[int] = ()) -> None:
        self.backends = list(backends)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="service", daemon=True)
        self._connections: set[asyncio.Task[None]] = set()
        self._turn = 0

    def __enter__(self) -> Self:
        self._thread.start()
        listening = asyncio.run_coroutine_threadsafe(asyncio.start_server(self._serve, "127.0.0.1", 0), self._loop)
        self._server = listening.result(PATIENCE)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(PATIENCE)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE)
        self._loop.close()

    async def _end(self) -> None:
        await accept_no_more(self._server.sockets[0].fileno())
        self._server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            with contextlib.suppress(asyncio.CancelledError):
                await self._forward(reader, writer)
        finally:
            await _close(writer)
            self._connections.discard(task)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Until one side ends."""
        backend = await self._connect()
        if backend is None:
            return
        ways = [asyncio.create_task(_copy(reader, backend[1])), asyncio.create_task(_copy(backend[0], writer))]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            await _close(backend[1])

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        """None: nobody accepts."""
        self._turn += 1
        ports = list(self.backends)
        for n in range(len(ports)):
            with contextlib.suppress(OSError):
                return await asyncio.open_connection("127.0.0.1", ports[(self._turn + n) % len(ports)])
        return None


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
