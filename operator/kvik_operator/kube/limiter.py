"""How fast the operator may write: a token bucket shared by all its threads."""

import threading
from collections.abc import Callable


class TokenBucket:
    """`rate` tokens a second, at most `burst` at once. `clock` gives monotonic seconds."""

    def __init__(self, rate: float, burst: float, clock: Callable[[], float]) -> None:
        self._rate = rate
        self._burst = burst
        self._clock = clock
        self._lock = threading.Lock()
        self._tokens = burst
        self._filled_at = clock()

    def reserve(self) -> float:
        """Take one token, on credit if need be; returns the seconds to wait before using it."""
        with self._lock:
            now = self._clock()
            self._tokens = min(self._burst, self._tokens + (now - self._filled_at) * self._rate)
            self._filled_at = now
            self._tokens -= 1
            return max(0.0, -self._tokens / self._rate)
