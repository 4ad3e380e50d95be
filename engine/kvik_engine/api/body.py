"""Reading and parsing a request's body: bounded in size and time, parsed off the event loop when it is long."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import TypeVar

import msgspec
from aiohttp import web

from kvik_engine.api.body_budget import BodyBudget
from kvik_engine.api.error_body import PayloadError
from kvik_engine.api.limits import BODY_SECONDS, PARSE_IN_THREAD_BYTES, max_body_bytes
from kvik_engine.api.schema import parse
from kvik_engine.api.service import Service

_Request = TypeVar("_Request", bound=msgspec.Struct)


@asynccontextmanager
async def received(request: web.Request, service: Service, kind: type[_Request]) -> AsyncIterator[_Request]:
    """The typed request; leave the block when its texts are not needed any more.

    UserError (400, 408, 413, 415) when it is not acceptable, NotServing when too much is being read already.
    """
    _check_headers(request)
    reader = BodyReader(request, max_body_bytes(service.model.max_tokens), service.bodies)
    try:
        body = await reader.read()
        if len(body) >= PARSE_IN_THREAD_BYTES:
            yield await service.in_thread(parse, body, kind)
        else:
            yield parse(body, kind)
    finally:
        reader.release()


class BodyReader:
    """Reads one body, at most `limit` bytes within `seconds`, within the budget; release it in the end."""

    def __init__(self, request: web.Request, limit: int, budget: BodyBudget, seconds: float = BODY_SECONDS) -> None:
        self._request = request
        self._limit = limit
        self._budget = budget
        self._seconds = seconds
        self._size = 0

    async def read(self) -> bytes:
        """The whole body. PayloadError 413 or 408, NotServing."""
        if (self._request.content_length or 0) > self._limit:
            raise self._too_large()
        pieces: list[bytes] = []
        try:
            async with asyncio.timeout(self._seconds):
                async for piece in self._request.content.iter_any():
                    self._budget.take(len(piece))
                    self._size += len(piece)
                    if self._size > self._limit:
                        raise self._too_large()
                    pieces.append(piece)
        except TimeoutError as error:
            message = f"The request body took more than {self._seconds:g} s."
            raise PayloadError(HTTPStatus.REQUEST_TIMEOUT, message) from error
        return b"".join(pieces)

    def release(self) -> None:
        """Give the budget back what was taken."""
        self._budget.give_back(self._size)
        self._size = 0

    def _too_large(self) -> PayloadError:
        message = f"The request body is larger than {self._limit} bytes."
        return PayloadError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, message)


def _check_headers(request: web.Request) -> None:
    if request.headers.get("Content-Encoding", "identity") != "identity":
        raise PayloadError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "Content-Encoding is not supported.")
    kind = request.headers.get("Content-Type", "application/json").partition(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        raise PayloadError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "The Content-Type must be application/json.")
