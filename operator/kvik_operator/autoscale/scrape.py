"""Asks the engines: `GET /load` of every pod, 64 at once, 2 s each, and `GET /info` once per start of a core.

Whatever a pod answers, and whatever that does to us, is this pod's trouble and nobody else's.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Protocol, Self, TypeVar

import aiohttp

from kvik_operator.autoscale.parse import MAX_BYTES, UnreadableAnswerError, parse_info, parse_load
from kvik_operator.autoscale.types import LoadReading
from kvik_operator.reconcile.types import EngineInfo

log = logging.getLogger(__name__)

T = TypeVar("T")

AT_ONCE: Final = 64
TIMEOUT_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True)
class Target:
    """One engine pod's metrics port."""

    uid: str
    host: str
    port: int

    def url(self, path: str) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}{path}"


class ScrapeMeter(Protocol):
    def scraped(self, outcome: str) -> None: ...


class Scraper:
    """An async context manager; belongs to one event loop. `clock` gives monotonic seconds."""

    def __init__(self, clock: Callable[[], float], meter: ScrapeMeter) -> None:
        self._clock = clock
        self._meter = meter
        self._session: aiohttp.ClientSession | None = None
        self._slots = asyncio.Semaphore(AT_ONCE)

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=TIMEOUT_SECONDS),
            connector=aiohttp.TCPConnector(limit=AT_ONCE, force_close=True),
            headers={"User-Agent": "kvik-operator"},
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def loads(self, targets: Sequence[Target]) -> dict[str, LoadReading]:
        """The readings by pod uid, of the pods that answered as they should."""
        readings = await asyncio.gather(*(self._load(target) for target in targets))
        return {target.uid: reading for target, reading in zip(targets, readings, strict=True) if reading is not None}

    async def info(self, target: Target) -> EngineInfo | None:
        """None: not to be had now; ask again."""
        return await self._ask(target, "/info", parse_info)

    async def _load(self, target: Target) -> LoadReading | None:
        reading = await self._ask(target, "/load", lambda body: parse_load(body, self._clock()))
        if reading is not None:
            self._meter.scraped("ok")
        return reading

    async def _ask(self, target: Target, path: str, parse: Callable[[bytes], T]) -> T | None:
        """None: no answer, or one that cannot be read."""
        try:
            body = await self._get(target, path)
            return parse(body) if body is not None else None
        except UnreadableAnswerError:
            self._meter.scraped("unreadable")
        except Exception:
            log.exception("an engine could not be asked: this is a bug", extra={"url": target.url(path)})
            self._meter.scraped("unreadable")
        return None

    async def _get(self, target: Target, path: str) -> bytes | None:
        assert self._session is not None, "use as an async context manager"
        async with self._slots:
            try:
                async with self._session.get(target.url(path), allow_redirects=False) as response:
                    if response.status == 200:
                        return await _bounded(response.content)
            except (aiohttp.ClientError, TimeoutError, OSError):
                self._meter.scraped("unreachable")
                return None
        self._meter.scraped("refused")
        return None


async def _bounded(content: aiohttp.StreamReader) -> bytes:
    """The body, cut off where it is too long to be accepted."""
    body = b""
    async for chunk in content.iter_chunked(MAX_BYTES):
        body += chunk
        if len(body) > MAX_BYTES:
            break
    return body
