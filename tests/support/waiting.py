"""Waiting for something that another task or process brings about."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

PATIENCE = 60.0
"""Seconds after which what is awaited counts as never to come: a bound for hanging, which says nothing of speed."""


async def until(condition: Callable[[], object], seconds: float = PATIENCE) -> None:
    """Return when `condition()` holds; TimeoutError after `seconds`."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110  (what is awaited has no event to wait on)
            await asyncio.sleep(0.002)


async def settle(turns: int = 20) -> None:
    """Let the other tasks go on: so many milliseconds, and as many turns of the loop even when the machine stalls.

    For what is said to have no consequence. What has one is awaited with `until`.
    """
    for _ in range(turns):
        await asyncio.sleep(0.001)


def wait_until(condition: Callable[[], object], seconds: float = PATIENCE, pause: float = 0.05) -> None:
    """The same for tests without an event loop."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"not true within {seconds} s")
        time.sleep(pause)
