"""Event loops: each in a thread of its own, apart from kopf's, which cancels every task of the loop it runs in."""

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from typing import Any

log = logging.getLogger(__name__)


def run_loop(main: Callable[[], Coroutine[Any, Any, None]], patience: float) -> None:
    """As `asyncio.run`, but tasks that do not end within `patience` seconds of their cancellation are left behind."""
    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(main())
    finally:
        rest = asyncio.all_tasks(loop)
        for task in rest:
            task.cancel()
        if rest:
            _, left = loop.run_until_complete(asyncio.wait(rest, timeout=patience))
            if left:
                log.warning("tasks were left behind", extra={"tasks": len(left)})
        loop.close()


class LoopThread:
    """Runs `main()` in a new loop until it is stopped. `crashed` is called if it ends by itself, which is a bug."""

    def __init__(self, name: str, main: Callable[[], Coroutine[Any, Any, None]], crashed: Callable[[], None]) -> None:
        self.name = name
        self._main = main
        self._crashed = crashed
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._stopping = False

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Cancel the main coroutine, once: it may tidy up undisturbed. Returns at once; also for signal handlers."""
        if self._stopping:
            return
        self._stopping = True
        if self._loop is not None and self._task is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._task.cancel)

    def join(self, timeout: float) -> bool:
        """Whether the thread ended within `timeout` seconds."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            asyncio.run(self._supervise())
        except asyncio.CancelledError:
            return
        except Exception:
            log.exception("a thread crashed: this is a bug", extra={"thread_name": self.name})
        if not self._stopping:
            self._crashed()

    async def _supervise(self) -> None:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        if self._stopping:
            return
        await self._main()
