"""Reading and parsing a request's body: bounded in size and time, parsed off the event loop when it is long."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import TypeVar

import msgspec
from aiohttp import web

from kvik_engine.api.error_body import PayloadError
from kvik_engine.api.limits import BODY_SECONDS, PARSE_IN_THREAD_BYTES, max_body_bytes
from kvik_engine.api.schema import parse
from kvik_engine.api.service import Service

_Request = TypeVar("_Request", bound=msgspec.Struct)


async def read_request(request: web.Request, service: Service, kind: type[_Request]) -> _Request:
    """The typed request. UserError (400, 408, 413, 415) when it is not acceptable."""
    _check_headers(request)
    body = await read_body(request, max_body_bytes(service.model.max_tokens))
    if len(body) >= PARSE_IN_THREAD_BYTES:
        return await service.in_thread(parse, body, kind)
    return parse(body, kind)


async def read_body(request: web.Request, limit: int, seconds: float = BODY_SECONDS) -> bytes:
    """The whole body, at most `limit` bytes within `seconds`."""
    too_large = PayloadError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"The request body is larger than {limit} bytes.")
    if request.content_length is not None and request.content_length > limit:
        raise too_large
    pieces: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(seconds):
            async for piece in request.content.iter_any():
                size += len(piece)
                if size > limit:
                    raise too_large
                pieces.append(piece)
    except TimeoutError as error:
        raise PayloadError(HTTPStatus.REQUEST_TIMEOUT, f"The request body took more than {seconds:g} s.") from error
    return b"".join(pieces)


def _check_headers(request: web.Request) -> None:
    if request.headers.get("Content-Encoding", "identity") != "identity":
        raise PayloadError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "Content-Encoding is not supported.")
    kind = request.headers.get("Content-Type", "application/json").partition(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        raise PayloadError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "The Content-Type must be application/json.")
