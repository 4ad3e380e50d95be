"""How many prompt tokens a second are computed, as measured lately."""

from __future__ import annotations

import math


class TokenRate:
    """Prompt tokens a second, smoothed."""

    WINDOW_SECONDS = 10.0
    """Older steps count for less and less."""
    LEAST_SECONDS = 0.25
    """Nothing is known before so much was measured."""

    def __init__(self) -> None:
        self._tokens = 0.0
        self._seconds = 0.0

    def count(self, seconds: float, tokens: int) -> None:
        kept = math.exp(-seconds / self.WINDOW_SECONDS)
        self._tokens = self._tokens * kept + tokens
        self._seconds = self._seconds * kept + seconds

    @property
    def tokens_per_second(self) -> float | None:
        if self._seconds < self.LEAST_SECONDS or not self._tokens:
            return None
        return self._tokens / self._seconds
