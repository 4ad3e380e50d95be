"""Draining: accept for as long as somebody may still send in good faith, let streams finish, end.

    SERVING --begin--> LINGERING --idle for 5 s--> DONE
                       LINGERING --half of the timeout--> REFUSING --idle or timeout--> DONE

Kubernetes takes a deleted pod out of the endpoints by itself, but kube-proxy needs a moment, which is long on a busy
cluster, and while no pod of the Service is ready it goes back to those that terminate and are: so a SIGTERM leaves
/ready at 200, and new requests are still accepted, each answer with `Connection: close`. Only when half of the timeout
is over they are refused, and /ready says so: what was accepted last needs the rest. `kvik drain` comes without a
deletion: it makes /ready false first.

Idle for 5 s, not merely idle: a stream that began before the drain has told its client nothing of `Connection: close`,
which sends its next request on the same connection as soon as the stream has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from enum import Enum

from kvik_engine.errors import NotServing

LINGER_SECONDS = 5.0
LONGEST_LINGER = 0.5
"""Of the timeout, in addition."""
REFUSED_RETRY_AFTER = 1.0


class DrainState(Enum):
    """Where the process stands on its way out."""

    SERVING = "serving"
    LINGERING = "lingering"
    REFUSING = "refusing"


def refuses_at(begun: float, linger: float, timeout: float) -> float:
    """Seconds on the clock of `begun`. Without a linger time at once: somebody wants the process to end."""
    return begun + linger + LONGEST_LINGER * timeout if linger else begun


class Drain:
    """Owned by the event loop; `state` and `ready` may be read by any thread."""

    def __init__(self) -> None:
        self.state = DrainState.SERVING
        self.ready = True
        """False once `kvik drain` asked to be taken out of the endpoints, or new work is refused."""
        self.active = 0
        """Requests inside a handler of the API."""
        self.latest = 0.0
        """When a request last came or ended, on the loop's clock."""
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
        clock = asyncio.get_running_loop().time
        begun = self.latest = clock()
        refuses = refuses_at(begun, linger, timeout)
        while not self._aborted and (left := refuses - clock()) > 0:
            if self.active:
                await self._change_within(left)
            elif (quiet := self.latest + linger - clock()) > 0:
                await self._change_within(min(left, quiet))
            else:
                break
        self.state = DrainState.REFUSING
        self.ready = False
        await self._wait(begun + linger + timeout - clock(), lambda: self._aborted or self.active == 0)

    async def settle(self, seconds: float) -> None:
        """Give the handlers of requests that were just failed time to say so."""
        await self._wait(seconds, lambda: self.active == 0)

    def enter(self) -> None:
        """A handler began to work on a request."""
        self.active += 1
        self.latest = asyncio.get_running_loop().time()

    def leave(self) -> None:
        """It is done with it, one way or another."""
        self.latest = asyncio.get_running_loop().time()
        self.active -= 1
        self._changed.set()

    async def _wait(self, seconds: float, over: Callable[[], bool]) -> None:
        end = asyncio.get_running_loop().time() + seconds
        while not over() and (left := end - asyncio.get_running_loop().time()) > 0:
            await self._change_within(left)

    async def _change_within(self, seconds: float) -> None:
        """Return when a handler is done with a request or the wait was aborted, at the latest after so long."""
        self._changed.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()
