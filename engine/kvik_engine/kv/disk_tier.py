"""Cached prefixes on a local disk, below the host pool: bounded, and never waited for.

All calls return at once; a worker reads and writes the slots' memory, and `done` tells what it finished. The slot of a
job must stay as it is until then. A disk that is full, read-only, gone or corrupt costs hits and a warning, no more.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Protocol

from kvik_engine.kv.block_files import HEAD_BYTES, BlockFiles, CorruptBlock, bytes_on_disk
from kvik_engine.kv.host_pool import ContentKey, Slot

log = logging.getLogger(__name__)

MAX_WRITES = 16
"""Blocks that wait for the disk. More are not kept: the disk is slower than they come."""
PAUSE_SECONDS = 30.0
"""After a failed write, or a folder that could not be opened, the disk is left alone for so long."""


@dataclass(frozen=True, slots=True)
class DiskUse:
    """Blocks on disk, and totals in blocks."""

    blocks: int = 0
    written: int = 0
    read: int = 0
    failed_writes: int = 0
    failed_reads: int = 0


@dataclass(frozen=True, slots=True)
class Done:
    """A job on a slot ended."""

    slot: Slot
    key: ContentKey
    wrote: bool
    """Whether it was a write."""
    error: str | None


@dataclass(frozen=True, slots=True)
class Stock:
    """What an earlier run left, the oldest first; or why nobody knows."""

    keys: Sequence[ContentKey]
    error: str | None = None


class LowerTier(Protocol):
    """What the host pool asks of a tier below it."""

    @property
    def use(self) -> DiskUse: ...

    def __contains__(self, key: ContentKey) -> bool: ...

    def write(self, key: ContentKey, slot: Slot) -> bool:
        """Keep the slot's content. False: it is there already, or not wanted now."""
        ...

    def read(self, key: ContentKey, slot: Slot) -> None:
        """Fill the slot with content that is there."""
        ...

    def forget(self, key: ContentKey) -> None:
        """This content must not be found any more. Fine if there is none."""
        ...

    def done(self) -> list[Done]:
        """The jobs that ended since the last call."""
        ...


class NoLowerTier:
    """Nothing lies below the host pool."""

    use = DiskUse()

    def __contains__(self, key: ContentKey) -> bool:
        return False

    def write(self, key: ContentKey, slot: Slot) -> bool:
        return False

    def read(self, key: ContentKey, slot: Slot) -> None:
        raise AssertionError("there is nothing to read")

    def forget(self, key: ContentKey) -> None:
        pass

    def done(self) -> list[Done]:
        return []


class DiskTier:
    """At most `max_bytes` of pages on disk, the longest unused go first. `run` gives jobs to a worker, in order."""

    def __init__(
        self,
        files: BlockFiles,
        memory: memoryview,
        *,
        block_bytes: int,
        max_bytes: int,
        run: Callable[[Callable[[], None]], object],
        clock: Callable[[], float],
    ) -> None:
        self._files = files
        self._memory = memory
        self._block_bytes = block_bytes
        self._file_bytes = block_bytes + HEAD_BYTES
        self._max_blocks = max_bytes // bytes_on_disk(block_bytes)
        self._run = run
        self._clock = clock
        self._known: OrderedDict[ContentKey, None] = OrderedDict()
        self._writing: dict[ContentKey, Slot] = {}
        """What is wanted of the writes under way, and from which slot: what was forgotten may be asked for again."""
        self._ended: SimpleQueue[Done | Stock] = SimpleQueue()
        self._opened = self._opening = False
        self._paused_until = float("-inf")
        self._written = self._read = self._failed_writes = self._failed_reads = 0

    def open(self) -> None:
        """Take stock of what an earlier run left, before the first job. Where that fails, the first write after a
        pause makes the worker try again."""
        self._look()
        self.done()

    @property
    def use(self) -> DiskUse:
        return DiskUse(len(self._known), self._written, self._read, self._failed_writes, self._failed_reads)

    def __contains__(self, key: ContentKey) -> bool:
        return key in self._known

    def write(self, key: ContentKey, slot: Slot) -> bool:
        if key in self._known:
            self._known.move_to_end(key)
            return False
        if key in self._writing or len(self._writing) >= min(MAX_WRITES, self._max_blocks):
            return False
        if self._opening or self._clock() < self._paused_until:
            return False
        if not self._opened:
            self._opening = True
            self._run(self._look)
            return False
        while len(self._known) + len(self._writing) >= self._max_blocks:
            self._remove(self._known.popitem(last=False)[0])
        self._writing[key] = slot
        region = self._region(slot)
        self._run(lambda: self._job(key, slot, lambda: self._files.write(key, region), wrote=True))
        return True

    def read(self, key: ContentKey, slot: Slot) -> None:
        self._known.move_to_end(key)
        region = self._region(slot)
        self._run(lambda: self._job(key, slot, lambda: self._files.read(key, region), wrote=False))

    def forget(self, key: ContentKey) -> None:
        self._writing.pop(key, None)
        if key in self._known:
            del self._known[key]
            self._remove(key)

    def done(self) -> list[Done]:
        ended: list[Done] = []
        while True:
            try:
                one = self._ended.get_nowait()
            except Empty:
                return ended
            if isinstance(one, Stock):
                self._take_stock(one)
            else:
                self._settle(one)
                ended.append(one)

    def _take_stock(self, stock: Stock) -> None:
        self._opening = False
        if stock.error is not None:
            self._fail_write(stock.error)
            return
        self._opened = True
        self._known = OrderedDict.fromkeys(stock.keys)

    def _settle(self, done: Done) -> None:
        if done.wrote:
            wanted_from = self._writing.get(done.key)
            if wanted_from is done.slot:
                del self._writing[done.key]
            if done.error is not None:
                self._fail_write(done.error)
            elif wanted_from is done.slot:
                self._written += 1
                self._known[done.key] = None
            elif wanted_from is None:
                self._remove(done.key)
        elif done.error is None:
            self._read += 1
        else:
            self._failed_reads += 1
            log.warning("a block of the disk cache cannot be read", extra={"why": done.error})
            self.forget(done.key)

    def _fail_write(self, why: str) -> None:
        self._failed_writes += 1
        self._paused_until = self._clock() + PAUSE_SECONDS
        log.warning("the disk cache cannot be written", extra={"why": why, "pause_seconds": PAUSE_SECONDS})

    def _look(self) -> None:
        """In the worker, but for the first time. Whatever happens is reported, or nobody would try again."""
        try:
            stock = Stock(self._left())
        except OSError as failure:
            stock = Stock((), str(failure))
        except Exception as failure:
            log.exception("the disk cache cannot be opened")
            stock = Stock((), repr(failure))
        self._ended.put(stock)

    def _left(self) -> list[ContentKey]:
        """What is on disk; of another size or too much, it is removed."""
        self._files.open()
        left: list[ContentKey] = []
        for key, size in self._files.list():
            if size == self._file_bytes:
                left.append(key)
            else:
                self._files.remove(key)
        extra = max(0, len(left) - self._max_blocks)
        for key in left[:extra]:
            self._files.remove(key)
        return left[extra:]

    def _job(self, key: ContentKey, slot: Slot, work: Callable[[], None], *, wrote: bool) -> None:
        """In the worker. Whatever happens is reported, or the slot would be lost."""
        error: str | None = None
        try:
            work()
        except (OSError, CorruptBlock) as failure:
            error = str(failure)
        except Exception as failure:
            log.exception("a job of the disk cache failed")
            error = repr(failure)
        self._ended.put(Done(slot, key, wrote, error))

    def _remove(self, key: ContentKey) -> None:
        def work() -> None:
            try:
                self._files.remove(key)
            except OSError as error:
                log.warning("a file of the disk cache cannot be removed", extra={"why": str(error)})

        self._run(work)

    def _region(self, slot: Slot) -> memoryview:
        return self._memory[slot.id * self._block_bytes : (slot.id + 1) * self._block_bytes]
