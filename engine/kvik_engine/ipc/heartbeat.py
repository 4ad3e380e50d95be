"""The heartbeat page: a small shared file in which the core shows that it moves.

The core is the only writer; any thread of any process may read. It decides liveness without the core's help, without
a socket and without the API's event loop, so neither a hung core nor a saturated API makes a probe lie.

Layout, native byte order: sequence number, then the fields of `_FIELDS`. The sequence is odd while the page is being
written; a reader copies until it saw the same even number before and after (a seqlock). A writer killed half way
leaves it odd for ever, so the reader gives up after some tries and takes the page as it is.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

HEARTBEAT_FILE = "heartbeat"
STALL_SECONDS = 10.0
"""A core that has work and finished no step for this long is stalled, unless its steps are known to take longer."""

_SEQUENCE = struct.Struct("=Q")
_FIELDS = struct.Struct("=Qdd")
_PAGE = mmap.PAGESIZE
_READ_TRIES = 50


class Phase(IntEnum):
    """What the core is doing. STARTING also covers loading, compiling and warming up."""

    STARTING = 0
    READY = 1
    STOPPING = 2


@dataclass(frozen=True, slots=True)
class Beat:
    """One reading. Times are CLOCK_MONOTONIC seconds."""

    phase: Phase
    progress_at: float
    """When the core last finished a step, or was last seen without work."""
    stall_seconds: float = STALL_SECONDS
    """How long a step may take before the core counts as stalled."""

    def stalled(self, now: float) -> bool:
        """Whether a ready core made no progress for `stall_seconds`. Loading is judged by the startup timeout."""
        return self.phase is Phase.READY and now - self.progress_at > self.stall_seconds


class HeartbeatWriter:
    """The core's end. `beat` costs a microsecond: call it every step, while idle (each second) and while loading."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.stall_seconds = STALL_SECONDS
        """Raised by the core once it knows how long its largest step takes."""
        self._page = _map(path, create=True)
        self._sequence = _SEQUENCE.unpack_from(self._page)[0] & ~1
        self._step = -1
        self._progress_at = clock()

    def beat(self, phase: Phase, *, step: int = 0, unfinished: int = 0) -> None:
        """Show the phase. A new number of finished steps is progress, and so is that no request waits or runs."""
        now = self._clock()
        if step != self._step or unfinished == 0 or phase is not Phase.READY:
            self._step, self._progress_at = step, now
        _SEQUENCE.pack_into(self._page, 0, self._sequence + 1)
        _FIELDS.pack_into(self._page, _SEQUENCE.size, phase, self._progress_at, self.stall_seconds)
        self._sequence += 2
        _SEQUENCE.pack_into(self._page, 0, self._sequence)

    def close(self) -> None:
        self._page.close()


class HeartbeatReader:
    """A probe's end."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._page: mmap.mmap | None = None

    def read(self) -> Beat | None:
        """The last beat; None before a core wrote the first one."""
        if self._page is None:
            try:
                self._page = _map(self._path, create=False)
            except (FileNotFoundError, ValueError):
                return None
        for _ in range(_READ_TRIES):
            before = _SEQUENCE.unpack_from(self._page)[0]
            fields = _FIELDS.unpack_from(self._page, _SEQUENCE.size)
            if before % 2 == 0 and before == _SEQUENCE.unpack_from(self._page)[0]:
                break
        if before == 0:
            return None
        phase, progress_at, stall_seconds = fields
        return Beat(Phase(phase), progress_at, stall_seconds)

    def close(self) -> None:
        if self._page is not None:
            self._page.close()
            self._page = None


def _map(path: Path, *, create: bool) -> mmap.mmap:
    """Map the page; ValueError when the file exists but is not a page long yet."""
    descriptor = os.open(path, (os.O_RDWR | os.O_CREAT) if create else os.O_RDONLY, 0o600)
    try:
        if create:
            os.ftruncate(descriptor, _PAGE)
        return mmap.mmap(descriptor, _PAGE, access=mmap.ACCESS_WRITE if create else mmap.ACCESS_READ)
    finally:
        os.close(descriptor)
