"""How a process of the engine says why it ends. Standard library only."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from pathlib import Path

from kvik_engine.errors import StartError

EXIT_START_ERROR = 78
"""Starting again unchanged cannot help."""
EXIT_NO_READER = 128 + signal.SIGPIPE
"""As a shell shows a program that SIGPIPE ended."""
TERMINATION_LOG = Path("/dev/termination-log")
_MAX_BYTES = 4096


def report_start_error(error: StartError, termination_log: Path = TERMINATION_LOG) -> None:
    """Write `Reason: message` to stderr, and to the termination log where Kubernetes made one."""
    report_end(str(error), termination_log)


def report_end(line: str, termination_log: Path = TERMINATION_LOG) -> None:
    """Write one line to stderr and to the termination log (at most 4 KiB, what the kubelet keeps)."""
    line = " ".join(line.split())
    sys.stderr.write(line + "\n")
    sys.stderr.flush()
    with contextlib.suppress(OSError):
        descriptor = os.open(termination_log, os.O_WRONLY | os.O_TRUNC)
        try:
            os.write(descriptor, line.encode()[:_MAX_BYTES])
        finally:
            os.close(descriptor)
