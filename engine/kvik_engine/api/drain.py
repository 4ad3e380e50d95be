"""Draining: accept a little longer, then refuse, let streams finish, end.

    SERVING --begin--> LINGERING --5 s--> REFUSING --idle or timeout--> DONE

Kubernetes takes a deleted pod out of the endpoints by itself, but kube-proxy needs a moment and falls back to a
terminating pod only while it is ready: so a SIGTERM leaves /ready at 200, and new requests are still accepted for 5 s,
each answer with `Connection: close`. `kvik drain` comes without a deletion: it makes /ready false first.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from enum import Enum

from kvik_engine.errors import NotServing

LINGER_SECONDS = 5.0
REFUSED_RETRY_AFTER = 1.0


class DrainState(Enum):
    """Where the process stands on its way out."""

    SERVING = "serving"
    LINGERING = "lingering"
    REFUSING = "refusing"


class Drain:
    """Owned by the event loop; `state` and `ready` may be read by any thread."""

    def __init__(self) -> None:
        self.state = DrainState.SERVING
        self.ready = True
        """False once `kvik drain` asked to be taken out of the endpoints."""
        self.active = 0
        """Requests inside a handler of the API."""
        self._aborted = False
        self._changed = asyncio.Event()

    @property
    def draining(self) -> bool:
        return self.state is not DrainState.SERVING

    def admit(self) -> None:
        """NotServing when new work is refused."""
        if self.state is DrainState.REFUSING:
            raise NotServing("The engine is shutting down.", retry_after=REFUSED_RETRY_AFTER)

    def abort(self) -> None:
        """Wait no longer: a second signal came."""
        self._aborted = True
        self._changed.set()

    async def run(self, *, linger: float, timeout: float) -> None:
        """Return when the process may end: no request is active, or `timeout` seconds after the linger time."""
        self.state = DrainState.LINGERING
        await self._wait(linger, lambda: self._aborted)
        self.state = DrainState.REFUSING
        await self._wait(timeout, lambda: self._aborted or self.active == 0)

    async def settle(self, seconds: float) -> None:
        """Give the handlers of requests that were just failed time to say so."""
        await self._wait(seconds, lambda: self.active == 0)

    def enter(self) -> None:
        """A handler began to work on a request."""
        self.active += 1

    def leave(self) -> None:
        """It is done with it, one way or another."""
        self.active -= 1
        self._changed.set()

    async def _wait(self, seconds: float, over: Callable[[], bool]) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not over():
                    self._changed.clear()
                    await self._changed.wait()
