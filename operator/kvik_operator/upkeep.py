"""Looks after what the cluster has to hold for an API that is served here, and tells what is wrong as it changes."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from kvik_operator.errors import ClusterError

log = logging.getLogger(__name__)

PERIOD_SECONDS: Final = 15.0
RETRY_SECONDS: Final = 2.0
"""While nothing is served."""


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong, in words. `for_leader`: a leader that serves the API puts it right, whenever there is one."""

    message: str
    for_leader: bool = False


class Upkeep:
    """`api`: its name. `look` puts right what it can and returns what is wrong; it may raise ClusterError."""

    def __init__(self, api: str, look: Callable[[], Awaitable[Problem | None]], serving: Callable[[], bool]) -> None:
        self._api = api
        self._look = look
        self._serving = serving
        self._problem: Problem | None = Problem(f"{api} has not been looked after yet")

    def problem(self) -> str | None:
        """From any thread: why nothing is served; None: it is, or will be as soon as there is a leader that serves.

        Where the API was just switched on, the leader is of before that, and ends only when this replica is ready.
        """
        problem = self._problem
        return None if self._serving() or problem is None or problem.for_leader else problem.message

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self.tend()
            await asyncio.sleep(PERIOD_SECONDS if self._serving() else RETRY_SECONDS)

    async def tend(self) -> None:
        """Look, and tell what was found if it is something else than before."""
        try:
            found = await self._look()
        except ClusterError as error:
            found = Problem(f"{self._api} could not be looked after: {error}")
        if found == self._problem:
            return
        self._problem = found
        if found is None:
            log.info("an API is in order", extra={"api": self._api})
        else:
            log.warning("an API is not in order", extra={"api": self._api, "problem": found.message})
