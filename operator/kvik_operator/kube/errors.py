"""From what the API server answered (or did not) to the operator's own errors."""

import json
from collections.abc import Mapping
from typing import Any

from kvik_operator.errors import ClusterError, Conflict, NotFound, Refused, Unavailable


def from_response(what: str, status: int, body: bytes, headers: Mapping[str, str]) -> ClusterError:
    """`body` is a `metav1.Status`, or anything at all when a proxy answered in the API server's place."""
    parsed = _status_object(body)
    reason = str(parsed.get("reason") or f"HTTP{status}")
    message = str(parsed.get("message") or body[:300].decode(errors="replace") or "no message")
    if status == 404:
        return NotFound(what, status, reason, message)
    if status == 409:
        return Conflict(what, status, reason, message)
    if status in (401, 408, 429) or status >= 500:
        # 401: the token is rotated under us and read again within a minute.
        return Unavailable(what, status, reason, message, _retry_after(parsed, headers))
    return Refused(what, status, reason, message)


def from_exception(what: str, error: Exception) -> Unavailable:
    """A broken or silent connection; `error` is aiohttp's, asyncio's or the operating system's."""
    return Unavailable(what, None, type(error).__name__, str(error) or "the API server did not answer in time")


def _status_object(body: bytes) -> Mapping[str, Any]:
    try:
        parsed = json.loads(body)
    except ValueError:
        return {}
    return parsed if isinstance(parsed, dict) else {}


def _retry_after(status: Mapping[str, Any], headers: Mapping[str, str]) -> float | None:
    details = status.get("details")
    raw = headers.get("Retry-After") or (details.get("retryAfterSeconds") if isinstance(details, dict) else None)
    try:
        seconds = float(raw) if raw is not None else None
    except (TypeError, ValueError):
        return None  # a date: the back-off of the caller decides
    return seconds if seconds is not None and 0 <= seconds <= 600 else None
