"""Runs the queue: a fixed number of workers that each take a pool, reconcile it and give it back.

Thread-safe on the outside: the watches run in another thread and only call `add`.
"""

import asyncio
import contextlib
import logging
import random
import threading
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol

from kvik_operator.errors import ClusterError, Conflict, Unavailable
from kvik_operator.names import PoolKey
from kvik_operator.reconcile.types import Requeue
from kvik_operator.telemetry.logging import log_context
from kvik_operator.watch.queue import Backoff, KeyQueue

log = logging.getLogger(__name__)

Work = Callable[[PoolKey], Awaitable[Requeue | None]]


class ReconcileMeter(Protocol):
    def reconciled(self, seconds: float, outcome: str) -> None: ...


class Workers:
    """`clock` gives monotonic seconds; `rng` draws the jitter of the back-off."""

    def __init__(
        self,
        *,
        backoff: Backoff,
        meter: ReconcileMeter,
        rng: random.Random,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._queue = KeyQueue(backoff, rng)
        self._lock = threading.Lock()
        self._meter = meter
        self._clock = clock
        self._open = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake: asyncio.Event | None = None

    def add(self, keys: Iterable[PoolKey]) -> None:
        """Enqueue pools; from any thread. Before `open` nothing is kept, since all pools are looked at then."""
        with self._lock:
            if self._open:
                for key in keys:
                    self._queue.add(key, self._clock())
        self._wake_up()

    def open(self, keys: Callable[[], Iterable[PoolKey]]) -> None:
        """This process may write, for the first time or again: work, and look at all these pools; from any thread.

        `keys` is asked once `add` keeps what it is given, so that no pool that comes meanwhile falls between the two.
        """
        with self._lock:
            self._open = True
        self.add(keys())

    def oldest_age(self) -> float:
        """Seconds the oldest pool has waited or been worked on; 0 as long as there is no work for this process."""
        with self._lock:
            return self._queue.oldest_age(self._clock())

    def stuck_for(self) -> float:
        """Seconds without any progress although there is work; 0 as long as there is none for this process."""
        with self._lock:
            return self._queue.stuck_for(self._clock())

    def depth(self) -> int:
        with self._lock:
            return self._queue.depth()

    async def run(self, count: int, work: Work) -> None:
        """Work until cancelled, on `count` pools at once; nothing is taken before `open`."""
        self._loop, self._wake = asyncio.get_running_loop(), asyncio.Event()
        free = asyncio.Semaphore(count)
        async with asyncio.TaskGroup() as tasks:
            while True:
                await free.acquire()
                key = await self._next()
                tasks.create_task(self._work_on(key, work, free))

    async def _next(self) -> PoolKey:
        assert self._wake is not None
        while True:
            self._wake.clear()
            with self._lock:
                key = self._queue.take(self._clock())
                wait = self._queue.next_due(self._clock())
            if key is not None:
                return key
            # Not wait_for: until Python 3.12 it swallows a cancellation that comes together with the wake-up.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._wake.wait()

    async def _work_on(self, key: PoolKey, work: Work, free: asyncio.Semaphore) -> None:
        started = self._clock()
        with log_context(pool=str(key)):
            try:
                requeue = await work(key)
            except Conflict as error:
                with self._lock:
                    self._queue.outdated(key, self._clock())
                self._meter.reconciled(self._clock() - started, "retry")
                log.info("somebody was faster", extra={"error": str(error)})
            except Unavailable as error:
                self._failed(key, started, "retry", error.delay, error)
            except ClusterError as error:
                self._failed(key, started, "retry", None, error)
            except Exception as error:
                log.exception("reconcile failed: this is a bug")
                self._failed(key, started, "bug", None, error)
            else:
                with self._lock:
                    self._queue.done(key, self._clock(), requeue.after if requeue else None)
                self._meter.reconciled(self._clock() - started, "ok")
            finally:
                free.release()
                self._wake_up()

    def _wake_up(self) -> None:
        if self._loop is not None and self._wake is not None:
            # The loop is closed only when the process ends.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._wake.set)

    def _failed(self, key: PoolKey, started: float, outcome: str, at_least: float | None, error: Exception) -> None:
        with self._lock:
            delay = self._queue.failed(key, self._clock(), at_least)
        self._meter.reconciled(self._clock() - started, outcome)
        log.warning("reconcile will be retried", extra={"retry_in_s": round(delay, 2), "error": str(error)})
