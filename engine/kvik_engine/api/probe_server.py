"""The metrics port, served by a thread with an event loop of its own, so that a busy API never delays a probe."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable

from aiohttp import web

from kvik_engine.api.connection import listen

_START_SECONDS = 10.0


class ProbeServer:
    """Runs from `start` to `stop`."""

    def __init__(self, make_app: Callable[[], web.Application], server_socket: socket.socket) -> None:
        self._make_app = make_app
        self._socket = server_socket
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._listening = threading.Event()
        self._thread = threading.Thread(target=self._run, name="probes", daemon=True)

    def start(self) -> None:
        """Returns when the port answers. RuntimeError if it does not: an engine without probes is not to be served."""
        self._thread.start()
        if not self._listening.wait(_START_SECONDS):
            raise RuntimeError(f"the metrics port does not answer after {_START_SECONDS:g} s")

    def stop(self) -> None:
        if self._loop is not None and self._stop is not None:
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(2.0)

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        runner, server = await listen(self._make_app(), self._socket)
        self._listening.set()
        await self._stop.wait()
        server.close()
        await runner.cleanup()
