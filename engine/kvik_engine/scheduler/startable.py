"""Which of a step's new requests will not wait, and so do not count against the limit of the waiting queue.

An estimate made before the step is planned: rows and room as admission asks for them, without prefix hits. Who finds
both waits at most for the prompts ahead of it.
"""

from __future__ import annotations

from kvik_engine.request import Request
from kvik_engine.scheduler import admission
from kvik_engine.scheduler.scheduler import Scheduler


class Startable:
    """Rows and blocks that are left for new requests; nothing once one of them, or one before them, must wait."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.taken = 0
        """Requests that found room."""
        kv, running = scheduler.kv, scheduler.running
        self._kv = kv
        self._open = not scheduler.waiting
        self._rows = scheduler.free_rows
        self._branches = sum(len(request.live) for request in running)
        self._blocks = kv.pool.available - sum(admission.owed(request, kv) for request in running)

    def take(self, request: Request) -> bool:
        """Whether `request` finds room, which it then takes. Those behind one that does not wait behind it."""
        blocks = admission.blocks_for_known(request, self._kv)
        kept_back = max(admission.watermark(self._kv, ()), self._branches) if self._branches else 0
        self._open = self._open and request.params.n <= self._rows and blocks + kept_back <= self._blocks
        if self._open:
            self.taken += 1
            self._rows -= request.params.n
            self._branches += request.params.n
            self._blocks -= blocks
        return self._open
