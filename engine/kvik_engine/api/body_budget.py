"""The memory that request bodies may take together."""

from __future__ import annotations

from kvik_engine.api.limits import MAX_BODIES_BYTES
from kvik_engine.errors import NotServing

FULL_RETRY_AFTER = 2.0


class BodyBudget:
    """Memory that bodies may take together. Owned by the event loop."""

    def __init__(self, limit: int = MAX_BODIES_BYTES) -> None:
        self._limit = limit
        self.taken = 0

    def take(self, size: int) -> None:
        """NotServing when there is no room now."""
        if self.taken + size > self._limit:
            raise NotServing("Too many large requests are being read.", retry_after=FULL_RETRY_AFTER)
        self.taken += size

    def give_back(self, size: int) -> None:
        self.taken -= size
