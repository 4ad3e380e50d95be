"""Errors as OpenAI's JSON: which status, type, code and headers each of our errors gets."""

from __future__ import annotations

import math
from http import HTTPStatus
from typing import Any

import msgspec
from aiohttp import web

from kvik_engine.errors import EngineDead, KvikError, RetryableError, UserError

MAX_RETRY_AFTER = 60
_DEAD_RETRY_AFTER = 5.0


class PayloadError(UserError):
    """The request as a message is wrong: too large, too slow, not JSON by its own account."""

    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status


def error_object(error: BaseException) -> dict[str, Any]:
    """`{"error": {...}}` with exactly message, type, param and code; code is a string or null."""
    if isinstance(error, UserError):
        return _object(error.message, "invalid_request_error", error.param, error.code)
    if isinstance(error, RetryableError):
        kind = "rate_limit_error" if error.status == HTTPStatus.TOO_MANY_REQUESTS else "server_error"
        return _object(error.message, kind, None, error.code)
    if isinstance(error, KvikError):
        return _object(str(error), "server_error", None, None)
    return _object("The server failed on this request.", "server_error", None, None)


def error_response(error: BaseException) -> web.Response:
    """The whole response to a request that no byte of an answer was sent for."""
    status, headers = HTTPStatus.INTERNAL_SERVER_ERROR.value, {}
    if isinstance(error, UserError):
        status, headers = error.status, {"x-should-retry": "false"}
        if status == HTTPStatus.UNAUTHORIZED:
            headers["WWW-Authenticate"] = "Bearer"
    elif isinstance(error, RetryableError):
        status, headers = error.status, {"Retry-After": _seconds(error.retry_after)}
    elif isinstance(error, EngineDead):
        status, headers = HTTPStatus.SERVICE_UNAVAILABLE.value, {"Retry-After": _seconds(_DEAD_RETRY_AFTER)}
    return json_response(error_object(error), status=status, headers=headers)


def json_response(value: object, *, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    """Any JSON answer; msgspec writes it, so that dicts and structs both do."""
    body = msgspec.json.encode(value)
    return web.Response(body=body, status=status, headers=headers, content_type="application/json")


def _object(message: str, kind: str, param: str | None, code: str | None) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def _seconds(value: float) -> str:
    return str(min(MAX_RETRY_AFTER, max(1, math.ceil(value))))
