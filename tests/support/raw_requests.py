"""Requests as bytes on a connection, for clients that do what no library does."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable

from tests.support.live_api import CHAT

BODY = json.dumps(CHAT | {"stream": True}).encode()
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"

Connect = Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]
"""A new connection to the API; it is closed after the test."""
