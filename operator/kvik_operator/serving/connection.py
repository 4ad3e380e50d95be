"""One HTTP connection of a client, with the bounds that aiohttp's server leaves open.

aiohttp 3.14 lets a head take as long as an idle connection may last, an hour, and be as large as all its headers may be
together; a client that reads nothing keeps its connection for ever, and each request that is no HTTP costs a traceback.
"""

import asyncio
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final, cast

from aiohttp import web
from aiohttp.web_request import BaseRequest

LINGER_SECONDS: Final = 1.0
"""For the rest of a body that no handler asked for."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Of one port. Times are seconds.

    `handshake_seconds` is for TLS. `head_seconds` runs from connecting, or from the first byte of a later request, to a
    whole head; `taking_seconds` is how long a client may take nothing of what it is sent; `idle_seconds` is between
    requests. `head_bytes` holds for all that comes while no request is being answered.
    """

    connections: int
    head_bytes: int = 16 << 10
    handshake_seconds: float = 10.0
    head_seconds: float = 10.0
    taking_seconds: float = 10.0
    idle_seconds: float = 75.0


class Connection(web.RequestHandler):
    """aiohttp's protocol with bounds. `ended` is done once a connection that was made is lost."""

    def __init__(self, server: web.Server, bounds: Bounds) -> None:
        loop = asyncio.get_running_loop()
        super().__init__(
            server,
            loop=loop,
            keepalive_timeout=bounds.idle_seconds,
            max_line_size=bounds.head_bytes,
            max_field_size=bounds.head_bytes,
            lingering_time=LINGER_SECONDS,
            access_log=None,  # type: ignore[arg-type]
        )
        self.ended: asyncio.Future[None] = loop.create_future()
        self.asked_at = loop.time()
        """When its last whole head came, or it was accepted; by the loop's clock."""
        self._bounds = bounds
        self._wire: asyncio.Transport | None = None
        """Unlike aiohttp's own reference, it stays when the connection is closed but not all is written."""
        self._head_bytes = 0
        self._heads = 0
        self._head_timer: asyncio.TimerHandle | None = None
        self._taking_timer: asyncio.TimerHandle | None = None

    @property
    def busy(self) -> bool:
        """A request is being answered."""
        return self._request_in_progress

    def leave(self) -> None:
        """End after the request that is being answered, and at once if there is none."""
        if self.busy:
            self.close()
        else:
            self.force_close()

    def abort(self) -> None:
        """End now; nothing if it has ended."""
        if self._wire is not None:
            self._wire.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._wire = cast(asyncio.Transport, transport)  # TLS transports are no subclass of it
        self._await_head()
        assert self._task_handler is not None
        self._task_handler.add_done_callback(lambda _: self._await_taking())

    def connection_lost(self, exc: BaseException | None) -> None:
        self._wire = None
        self._head_came()
        self._was_taken()
        super().connection_lost(exc)
        if not self.ended.done():
            self.ended.set_result(None)

    def data_received(self, data: bytes) -> None:
        if self._waiter is not None or self._request_count == 0:  # it waits for a request, so this is of a head
            self._head_bytes += len(data)
            if self._head_bytes > self._bounds.head_bytes:
                self.force_close()
                return
            if self._head_timer is None:
                self._await_head()
        super().data_received(data)
        if self._request_count != self._heads:
            self._heads = self._request_count
            self.asked_at = self._loop.time()
            self._head_came()

    def pause_writing(self) -> None:
        """The buffers to the client are full."""
        super().pause_writing()
        self._await_taking()

    def resume_writing(self) -> None:
        self._was_taken()
        super().resume_writing()

    def handle_error(
        self, request: BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """What is no HTTP is answered and not logged: anybody could fill the log."""
        if status == HTTPStatus.INTERNAL_SERVER_ERROR:
            return super().handle_error(request, status, exc, message)
        response = web.Response(status=status, text="The request is not valid HTTP.\n")
        response.force_close()
        return response

    def _await_head(self) -> None:
        self._head_timer = self._loop.call_later(self._bounds.head_seconds, self.force_close)

    def _head_came(self) -> None:
        self._head_bytes = 0
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _await_taking(self) -> None:
        """Also of what is left to be written when the connection closes."""
        if self._wire is not None and self._taking_timer is None:
            self._taking_timer = self._loop.call_later(self._bounds.taking_seconds, self.abort)

    def _was_taken(self) -> None:
        if self._taking_timer is not None:
            self._taking_timer.cancel()
            self._taking_timer = None
