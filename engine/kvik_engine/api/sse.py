"""Server-sent events to one client: data events, comments against silence, and an end that is always `[DONE]`."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from aiohttp import web

from kvik_engine.api.error_body import error_object

_HEADERS = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
_encode: Callable[[object], bytes] = msgspec.json.Encoder().encode


class EventStream:
    """Begins with `start`. ConnectionError from any call when the client is gone."""

    def __init__(self, request: web.Request) -> None:
        self._request = request
        self._response = web.StreamResponse(headers=_HEADERS)

    @property
    def started(self) -> bool:
        """Whether the status is sent: errors are events from then on."""
        return self._response.prepared

    async def start(self) -> None:
        """Send the headers. From here on errors are events."""
        await self._response.prepare(self._request)

    async def send(self, *events: object) -> None:
        """Send JSON events in one write."""
        await self._response.write(b"".join(b"data: " + _encode(event) + b"\n\n" for event in events))

    async def comment(self) -> None:
        """Keep proxies from closing a silent stream."""
        await self._response.write(b": waiting\n\n")

    async def finish(self, error: BaseException | None = None) -> web.StreamResponse:
        """Send the error, if any, then `[DONE]`."""
        if error is not None:
            await self.send(error_object(error))
        await self._response.write(b"data: [DONE]\n\n")
        return self._response
