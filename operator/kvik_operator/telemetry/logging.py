"""JSON lines on standard error: a fixed message plus key-values; which pool a line is about comes from the context."""

import contextlib
import contextvars
import json
import logging
import sys
import traceback
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

_context: contextvars.ContextVar[Mapping[str, str]] = contextvars.ContextVar("kvik_log_context", default={})  # noqa: B039

_STANDARD: Final = frozenset(logging.LogRecord("", 0, "", 0, "", (), None).__dict__) | {
    "message",
    "asctime",
    "taskName",
}


@contextlib.contextmanager
def log_context(**values: str) -> Iterator[None]:
    """Add key-values to every line logged inside, also by tasks started inside."""
    token = _context.set({**_context.get(), **values})
    try:
        yield
    finally:
        _context.reset(token)


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_context.get(),
        }
        # kopf puts whole objects into its records; only plain values are ours.
        line |= {
            name: value
            for name, value in record.__dict__.items()
            if name not in _STANDARD and isinstance(value, str | int | float | bool | None)
        }
        if record.exc_info and record.exc_info[1] is not None:
            line["exception"] = "".join(traceback.format_exception(record.exc_info[1]))
        return json.dumps(line, default=str)


def configure(level: str) -> None:
    """Send every logger's lines of at least `level` to standard error; those of libraries at warning and above."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for noisy in ("kopf", "kubernetes", "aiohttp.access", "asyncio"):
        logging.getLogger(noisy).setLevel(max(logging.WARNING, root.level))
