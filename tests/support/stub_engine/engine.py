"""The stub's inside: requests take a slot, make tokens at a fixed rate, and own KV blocks meanwhile."""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class StubOptions:
    """Times in seconds."""

    model_name: str
    max_requests: int
    max_queued_requests: int
    kv_blocks_total: int
    block_tokens: int
    tokens_per_second: float
    prefill_tokens_per_second: float
    ready_after: float
    accept_while_draining: float
    drain_timeout: float
    admission: str = "queue"
    swap_space: int = 0
    disk_cache_size: int | None = None
    api_keys_file: Path | None = None


class QueueFullError(Exception):
    """429: the queue has no place left."""


class DrainingError(Exception):
    """503: no new work any more."""


@dataclass(slots=True)
class Overrides:
    """What a test puts in place of the stub's own figures and manners, by `PUT /stub` on the metrics port."""

    load: dict[str, Any] = field(default_factory=dict)
    silent: bool = False
    """`/load` and `/info` accept the connection and never answer."""
    status: int | None = None
    """`/load` and `/info` answer with this status."""
    ready: bool = True


class StubEngine:
    def __init__(self, options: StubOptions, clock: Callable[[], float] = time.monotonic) -> None:
        self.options = options
        self.overrides = Overrides()
        self._clock = clock
        self._started = clock()
        self._warm_since: datetime | None = None
        self._slots = asyncio.Semaphore(options.max_requests)
        self._running = 0
        self._waiting = 0
        self._waiting_tokens = 0
        self._blocks = 0
        self._refused = 0
        self._draining_since: float | None = None
        self._latest = 0.0
        """When a request last came or ended."""

    @property
    def warm(self) -> bool:
        warm = self._clock() - self._started >= self.options.ready_after
        if warm and self._warm_since is None:
            self._warm_since = datetime.now(UTC)
        return warm

    @property
    def ready(self) -> bool:
        """A drain by SIGTERM leaves it true until new work is refused."""
        return self.warm and self.overrides.ready and not self._refuses_new_work()

    @property
    def draining(self) -> bool:
        return self._draining_since is not None

    @property
    def busy(self) -> bool:
        return self._running + self._waiting > 0

    def drain(self) -> None:
        self._draining_since = self._draining_since or self._clock()

    def drained(self) -> bool:
        """Whether the process may end: nothing has run for a while, or the time is over."""
        if self._draining_since is None:
            return False
        now, accepts = self._clock(), self.options.accept_while_draining
        idle = not self.busy and now - max(self._latest, self._draining_since) >= accepts
        return (
            idle
            or (self._refuses_new_work() and not self.busy)
            or now - self._draining_since >= accepts + self.options.drain_timeout
        )

    async def wait_until_drained(self) -> None:
        while True:
            await asyncio.sleep(0.05)
            if self.drained():
                return

    async def generate(self, prompt_tokens: int, max_tokens: int) -> AsyncIterator[str]:
        """One token's text at a time. Raises before the first: QueueFullError, DrainingError."""
        if self._refuses_new_work():
            raise DrainingError
        self._latest = self._clock()
        if self._waiting >= self.options.max_queued_requests:
            self._refused += 1
            raise QueueFullError
        self._waiting += 1
        self._waiting_tokens += prompt_tokens
        try:
            await self._slots.acquire()
        finally:
            self._waiting -= 1
            self._waiting_tokens -= prompt_tokens
        blocks = math.ceil((prompt_tokens + max_tokens) / self.options.block_tokens)
        self._running, self._blocks = self._running + 1, self._blocks + blocks
        try:
            await asyncio.sleep(prompt_tokens / self.options.prefill_tokens_per_second)
            for number in range(max_tokens):
                yield f"word{number} "
                await asyncio.sleep(1 / self.options.tokens_per_second)
        finally:
            self._running, self._blocks = self._running - 1, self._blocks - blocks
            self._latest = self._clock()
            self._slots.release()

    def knows(self, key: str) -> bool:
        """Whether a client may come with this key, by the file as it is now."""
        path = self.options.api_keys_file
        return path is None or any(line.partition(":")[2] == key for line in path.read_text().splitlines())

    def load(self) -> dict[str, Any]:
        state = "starting" if not self.warm else "draining" if self.draining else "ready"
        figures = {
            "schema": 1,
            "state": state,
            "step": int((self._clock() - self._started) * 100),
            "kv_blocks_used": min(self._blocks, self.options.kv_blocks_total),
            "kv_blocks_total": self.options.kv_blocks_total,
            "running": self._running,
            "waiting": self._waiting,
            "refused_total": self._refused,
            "waiting_prompt_tokens": self._waiting_tokens,
            "prefill_tokens_per_second": self.options.prefill_tokens_per_second,
            "ttft_p90_seconds": None,
            "warm_since": _rfc3339(self._warm_since),
            "api_keys_outdated": None if self.options.api_keys_file is None else False,
        }
        return figures | self.overrides.load

    def info(self) -> dict[str, Any]:
        options = self.options
        return {
            "schema": 1,
            "version": "0.1.0",
            "model": {
                "name": options.model_name,
                "revision": None,
                "digest": None,
                "parameters": 1000,
                "context": options.kv_blocks_total * options.block_tokens,
            },
            "dtype": "fp32",
            "quantization": "none",
            "device": "cpu",
            "attention": "cpu",
            "kv": {
                "key_dtype": "fp32",
                "value_dtype": "fp32",
                "bytes_per_token": 1024,
                "block_tokens": options.block_tokens,
                "blocks_total": options.kv_blocks_total,
                "max_tokens": options.kv_blocks_total * options.block_tokens,
            },
            "startup": {
                "model_fetched": None,
                "weights_loaded": _rfc3339(self._warm_since),
                "compiled": None,
                "warm": _rfc3339(self._warm_since),
            },
            "effective": {
                "max_requests": options.max_requests,
                "max_batch_tokens": 512,
                "chunked_prefill_tokens": 128,
                "max_queued_requests": options.max_queued_requests,
                "admission": options.admission,
                "swap_space": options.swap_space,
                "disk_cache_size": options.disk_cache_size,
                "api_keys": options.api_keys_file is not None,
            },
        }

    def _refuses_new_work(self) -> bool:
        """Docs/contract.md, section 6: half of the drain's time is over."""
        since, options = self._draining_since, self.options
        longest = options.accept_while_draining + options.drain_timeout / 2
        return since is not None and self._clock() - since >= longest


def _rfc3339(moment: datetime | None) -> str | None:
    return None if moment is None else moment.strftime("%Y-%m-%dT%H:%M:%SZ")
