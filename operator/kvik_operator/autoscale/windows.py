"""What a pool is remembered by between decisions: what it needed lately, and how fast it has grown. Pure, by `now`."""

from collections import deque
from dataclasses import dataclass, field

MAX_GAP_SECONDS = 20.0
GROWTH_PERIOD_SECONDS = 15.0


@dataclass(slots=True)
class DownWindow:
    """The replicas that were needed at each decision. A gap longer than MAX_GAP_SECONDS starts the window anew.

    So a fresh operator, and one that heard nothing for a while, scales nothing down before it has seen a whole window.
    """

    _samples: deque[tuple[float, int]] = field(default_factory=deque)
    _covered_since: float | None = None

    def add(self, now: float, needed: int, length: float) -> None:
        """`length`: seconds of the window, beyond which samples are forgotten."""
        if not self._samples or now - self._samples[-1][0] > MAX_GAP_SECONDS:
            self._samples.clear()
            self._covered_since = now
        self._samples.append((now, needed))
        while len(self._samples) > 1 and self._samples[0][0] < now - length:
            self._samples.popleft()

    def highest(self, now: float, length: float) -> int | None:
        """The most that was needed at any time of the window; None: no whole window was seen yet."""
        if self._covered_since is None or now - self._covered_since < length:
            return None
        return max((needed for at, needed in self._samples if at >= now - length), default=None)


@dataclass(slots=True)
class GrowthLimit:
    """At most doubling per 15 s: pods that were asked for need time to show what they take over."""

    _replicas: deque[tuple[float, int]] = field(default_factory=deque)

    def note(self, now: float, replicas: int) -> None:
        self._replicas.append((now, replicas))
        while self._replicas and self._replicas[0][0] <= now - GROWTH_PERIOD_SECONDS:
            self._replicas.popleft()

    def limit(self) -> int:
        """The most replicas to ask for now."""
        return 2 * min((replicas for _, replicas in self._replicas), default=1)


@dataclass(slots=True)
class PoolMemory:
    """Belongs to one pool (by uid) of one operator process."""

    window: DownWindow = field(default_factory=DownWindow)
    growth: GrowthLimit = field(default_factory=GrowthLimit)
