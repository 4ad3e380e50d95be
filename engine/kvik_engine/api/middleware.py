"""What every request of the API port goes through: an id, the drain's rules, errors as JSON."""

from __future__ import annotations

import logging
import secrets
import time
from http import HTTPStatus

from aiohttp import web
from aiohttp.typedefs import Handler

from kvik_engine.api.error_body import PayloadError, error_response
from kvik_engine.api.limits import MAX_CLIENT_ID_CHARS
from kvik_engine.api.service import SERVICE
from kvik_engine.errors import KvikError

log = logging.getLogger(__name__)

_UNTOLD = frozenset({"/tokenize", "/detokenize"})
"""Cheap, and asked by the thousand where a client counts tokens: only their failures are logged."""
_REQUEST_ID: web.RequestKey[str] = web.RequestKey("request_id", str)


@web.middleware
async def request_id(request: web.Request, handler: Handler) -> web.StreamResponse:
    """The client's own id is echoed and logged, never used as a key (vllm #10583). One line a request, no content.

    Those of _UNTOLD are logged when they fail.
    """
    own = request.headers.get("X-Request-Id", "")
    usable = 0 < len(own) <= MAX_CLIENT_ID_CHARS and own.isascii() and own.isprintable()
    request[_REQUEST_ID] = own if usable else f"req-{secrets.token_hex(16)}"
    started_at = time.monotonic()
    status: int | None = None
    try:
        response = await handler(request)
        status = response.status
        return response
    finally:
        if request.method == "POST" and not (request.path in _UNTOLD and status == HTTPStatus.OK):
            fields = {"request_id": request[_REQUEST_ID], "path": request.path, "status": status}
            log.info("request", extra=fields | {"seconds": round(time.monotonic() - started_at, 3)})


@web.middleware
async def errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Errors before the first byte of an answer."""
    try:
        return await handler(request)
    except KvikError as error:
        return error_response(error)
    except web.HTTPException as error:
        response = error_response(PayloadError(HTTPStatus(error.status), f"{error.reason}: {request.path[:200]}"))
        if "Allow" in error.headers:
            response.headers["Allow"] = error.headers["Allow"]
        return response
    except ConnectionError:
        raise
    except Exception as error:
        log.exception("a request failed", extra={"request_id": request.get(_REQUEST_ID), "path": request.path})
        return error_response(error)


@web.middleware
async def drain(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuse new work while shutting down; count what is in work."""
    state = request.app[SERVICE].drain
    if request.method != "POST":
        return await handler(request)
    state.admit()
    state.enter()
    try:
        return await handler(request)
    finally:
        state.leave()


async def finish_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Signal on_response_prepare: the id goes out, what runs here does not, and draining closes connections after their
    answer."""
    response.headers.popall("Server", None)
    response.headers["x-request-id"] = request.get(_REQUEST_ID, "")
    if request.app[SERVICE].drain.draining:
        response.force_close()
        response.headers["Connection"] = "close"  # aiohttp wrote its own before this signal
