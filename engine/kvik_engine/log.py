"""Logging of all processes to stderr; an event is a fixed message plus key-values (`extra`).

One JSON object a line, or a readable line where stderr is a terminal.
"""

from __future__ import annotations

import atexit
import datetime as dt
import json
import logging
import logging.handlers
import queue
import sys
from typing import Any

QUEUE_RECORDS = 4096
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def event_fields(record: logging.LogRecord) -> dict[str, Any]:
    """The key-values of an event."""
    return {key: value for key, value in vars(record).items() if key not in _STANDARD}


class JsonFormatter(logging.Formatter):
    """`{"at", "level", "process", "event", ...key-values}`."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "at": dt.datetime.fromtimestamp(record.created, dt.UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "process": self._process,
            "event": record.getMessage(),
            **event_fields(record),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=False)


class TerminalFormatter(logging.Formatter):
    """`12:00:00 api    ready  key=value`."""

    def __init__(self, process: str) -> None:
        super().__init__(f"%(asctime)s {process:<6} %(message)s", datefmt="%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        fields = "".join(f"  {key}={value}" for key, value in event_fields(record).items())
        return super().format(record) + fields


class DroppingQueueHandler(logging.handlers.QueueHandler):
    """Hands records to a writer thread and drops them while the queue is full, so that a blocked pipe blocks nobody.

    How many were dropped is told before the next record that fits.
    """

    def __init__(self, size: int = QUEUE_RECORDS) -> None:
        super().__init__(queue.Queue(size))
        self._dropped = 0

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        return record  # same process: nothing has to be made picklable

    def enqueue(self, record: logging.LogRecord) -> None:
        try:
            if self._dropped:
                self.queue.put_nowait(_dropped(self._dropped))
                self._dropped = 0
            self.queue.put_nowait(record)
        except queue.Full:
            self._dropped += 1


def _dropped(records: int) -> logging.LogRecord:
    level = {"levelno": logging.WARNING, "levelname": "WARNING"}
    return logging.makeLogRecord({"name": __name__, "msg": "log records were dropped", "records": records, **level})


def configure_logging(process: str, level: int = logging.INFO, *, queued: bool = False) -> None:
    """Send everything from `level` on to stderr; `queued` by a thread of its own (not before a fork)."""
    handler: logging.Handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(TerminalFormatter(process) if sys.stderr.isatty() else JsonFormatter(process))
    if queued:
        queue_handler = DroppingQueueHandler()
        listener = logging.handlers.QueueListener(queue_handler.queue, handler)
        listener.start()
        atexit.register(listener.stop)
        handler = queue_handler
    logging.basicConfig(level=level, handlers=[handler], force=True)
