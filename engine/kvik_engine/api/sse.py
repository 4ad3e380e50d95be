"""Server-sent events to one client: data events, comments against silence, and an end that is always `[DONE]`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import msgspec
from aiohttp import web

from kvik_engine.api.error_body import error_object
from kvik_engine.api.limits import WRITE_SECONDS

_HEADERS = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
_encode: Callable[[object], bytes] = msgspec.json.Encoder().encode


class EventStream:
    """Begins with `start`; ConnectionAbortedError from any call when the client takes nothing for a minute."""

    def __init__(self, request: web.Request, seconds: float = WRITE_SECONDS) -> None:
        self._request = request
        self._response = web.StreamResponse(headers=_HEADERS)
        self._seconds = seconds

    @property
    def started(self) -> bool:
        """Whether the status is sent: errors are events from then on."""
        return self._response.prepared

    async def start(self) -> None:
        """Send the headers. From here on errors are events."""
        await self._response.prepare(self._request)

    async def send(self, *events: object) -> None:
        """Send JSON events in one write."""
        await self._write(b"".join(b"data: " + _encode(event) + b"\n\n" for event in events))

    async def comment(self) -> None:
        """Keep proxies from closing a silent stream."""
        await self._write(b": waiting\n\n")

    async def finish(self, error: BaseException | None = None) -> web.StreamResponse:
        """Send the error, if any, then `[DONE]`."""
        if error is not None:
            await self.send(error_object(error))
        await self._write(b"data: [DONE]\n\n")
        return self._response

    async def _write(self, data: bytes) -> None:
        async with write_limit(self._request, self._seconds):
            await self._response.write(data)


@asynccontextmanager
async def write_limit(request: web.Request, seconds: float = WRITE_SECONDS) -> AsyncIterator[None]:
    """Writing that takes longer ends the connection with ConnectionAbortedError: the client reads nothing."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError as error:
        if request.transport is not None:
            request.transport.abort()
        raise ConnectionAbortedError(f"the client took nothing for {seconds:g} s") from error
