"""The Unix socket for `kvik drain`: one line of JSON in, one out. Only the own user can connect."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

ADMIN_SOCKET = "admin.sock"
_MAX_LINE = 4096
_LINE_SECONDS = 5.0


async def serve_admin(run_dir: Path, drain: Callable[[], dict[str, object]]) -> asyncio.Server:
    """Listen; `drain` starts draining (again harmless) and says what it finds."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_LINE_SECONDS):
                line = await reader.readline()
            reply = drain() if line.strip() == b"drain" else {"error": "the only command is: drain"}
            writer.write(json.dumps(reply).encode() + b"\n")
            await writer.drain()
        except (TimeoutError, OSError, ValueError):
            pass
        finally:
            writer.close()

    path = run_dir / ADMIN_SOCKET
    path.unlink(missing_ok=True)
    server = await asyncio.start_unix_server(answer, path=str(path), limit=_MAX_LINE)
    path.chmod(0o600)
    return server
