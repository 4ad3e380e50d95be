"""The product's disk cache below the fake runner's memory: its worker runs, and its files fail, when a test says so."""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Callable
from enum import Enum
from pathlib import Path

from kvik_engine.kv.block_files import HEAD_BYTES, BlockFiles, bytes_on_disk
from kvik_engine.kv.disk_tier import DiskTier
from kvik_engine.kv.host_pool import ContentKey
from tests.support.fake_runner import POISON

FINGERPRINT = "same"


class Fault(Enum):
    """What is wrong with the file system: which calls fail, and how."""

    NONE = None
    FULL = errno.ENOSPC
    READ_ONLY = errno.EROFS
    GONE = errno.EIO


class Damage(Enum):
    """What happened to a file behind the engine's back."""

    CHANGED = "a byte changed"
    SHORT = "cut off"
    LONG = "longer"
    EMPTY = "empty"
    REMOVED = "removed"


class FailingFiles(BlockFiles):
    """Files of a file system with a fault."""

    fault = Fault.NONE
    wrote_poison = False

    def open(self) -> None:
        self._fail(Fault.READ_ONLY, Fault.GONE)
        super().open()

    def write(self, key: ContentKey, content: memoryview) -> None:
        self.wrote_poison |= content[:8].cast("q")[0] == POISON
        self._fail(Fault.FULL, Fault.READ_ONLY, Fault.GONE)
        super().write(key, content)

    def read(self, key: ContentKey, into: memoryview) -> None:
        self._fail(Fault.GONE)
        super().read(key, into)

    def remove(self, key: ContentKey) -> None:
        self._fail(Fault.READ_ONLY, Fault.GONE)
        super().remove(key)

    @property
    def folder(self) -> Path | None:
        """This engine's own, once it is open."""
        return self._folder

    def _fail(self, *faults: Fault) -> None:
        if self.fault in faults:
            assert self.fault.value is not None
            raise OSError(self.fault.value, os.strerror(self.fault.value))


class HeldDisk:
    """A disk tier over slots of memory. Jobs wait in order until `go_on`."""

    def __init__(
        self,
        directory: Path,
        memory: memoryview,
        *,
        block_bytes: int,
        max_blocks: int,
        clock: Callable[[], float],
        fault: Fault = Fault.NONE,
    ) -> None:
        self.waiting: deque[Callable[[], None]] = deque()
        self.files = FailingFiles(directory, FINGERPRINT)
        self.files.fault = fault
        self.tier = DiskTier(
            self.files,
            memory,
            block_bytes=block_bytes,
            max_bytes=max_blocks * bytes_on_disk(block_bytes),
            run=self.waiting.append,
            clock=clock,
        )
        self.tier.open()

    def go_on(self, jobs: int) -> None:
        """Let the oldest jobs end."""
        for _ in range(min(jobs, len(self.waiting))):
            self.waiting.popleft()()
        assert not self.files.wrote_poison, "a slot is written to disk that was freed or never filled"

    def keys(self) -> list[ContentKey]:
        """Of what its files hold."""
        return [key for key, _ in self.files.list()] if self.files.folder else []

    def damage(self, first: Damage, every: int) -> None:
        """Every so many files are not what was written any more: one so, the next one otherwise."""
        kinds = list(Damage)
        paths = sorted(self.files.folder.glob("*/*"))[::every] if self.files.folder else []
        for number, path in enumerate(paths, start=kinds.index(first)):
            _damage(path, kinds[number % len(kinds)])

    def end(self) -> None:
        """As the end of the engine's process does: the folder is given back, and what waited is never done."""
        self.waiting.clear()
        if self.files._lock is not None:
            os.close(self.files._lock)
            self.files._lock = None


def _damage(path: Path, damage: Damage) -> None:
    content = path.read_bytes()
    match damage:
        case Damage.CHANGED:
            head, body = content[:HEAD_BYTES], content[HEAD_BYTES:]
            path.write_bytes(head + bytes(first ^ 1 for first in body[:1]) + body[1:])
        case Damage.SHORT:
            path.write_bytes(content[: len(content) // 2])
        case Damage.LONG:
            path.write_bytes(content + b"\0")
        case Damage.EMPTY:
            path.write_bytes(b"")
        case Damage.REMOVED:
            path.unlink()
