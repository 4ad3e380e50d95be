"""What a pool is remembered by between decisions: what it needed lately, how it grew and shrank. Pure, by `now`."""

from collections import deque
from dataclasses import dataclass, field

MAX_GAP_SECONDS = 20.0
GROWTH_PERIOD_SECONDS = 15.0
SHRINK_PERIODS = 3
"""In a stabilisation window."""
SHRINK_FRACTION = 0.1


@dataclass(slots=True)
class DownWindow:
    """The replicas that were needed at each decision. A gap longer than MAX_GAP_SECONDS starts the window anew.

    So a fresh operator, one that heard nothing for a while, and one whose window was made longer scale nothing down
    before they have seen a whole window.
    """

    _samples: deque[tuple[float, int]] = field(default_factory=deque)
    _covered_since: float | None = None

    def add(self, now: float, needed: int, length: float) -> None:
        """`length`: seconds of the window, beyond which samples are forgotten."""
        if self._covered_since is None or not self._samples or now - self._samples[-1][0] > MAX_GAP_SECONDS:
            self._samples.clear()
            self._covered_since = now
        self._samples.append((now, needed))
        while self._samples[0][0] < now - length:
            self._samples.popleft()
        # What was forgotten is not covered any more, should the window be made longer.
        self._covered_since = max(self._covered_since, now - length)

    def highest(self, now: float, length: float) -> int | None:
        """The most that was needed at any time of the window; None: no whole window was seen yet."""
        if self._covered_since is None or self._covered_since > now - length:
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
class ShrinkLimit:
    """At most one pod in ten, and at least one, per third of the stabilisation window.

    The load that fewer pods would carry is projected in proportion, but queues grow faster than that: a pool that jumps
    from eight pods to the projected three is overloaded at once, and comes back. Step by step the load shows itself.
    """

    _replicas: deque[tuple[float, int]] = field(default_factory=deque)

    def note(self, now: float, replicas: int, window: float) -> None:
        """`window`: seconds of the stabilisation window."""
        self._replicas.append((now, replicas))
        while self._replicas[0][0] <= now - window / SHRINK_PERIODS:
            self._replicas.popleft()

    def step(self) -> int:
        """How many pods may go within one period."""
        return max(1, int(self._highest() * SHRINK_FRACTION))

    def limit(self) -> int:
        """The fewest replicas to ask for now."""
        return max(0, self._highest() - self.step())

    def _highest(self) -> int:
        return max((replicas for _, replicas in self._replicas), default=0)


@dataclass(slots=True)
class PoolMemory:
    """Belongs to one pool (by uid) of one operator process."""

    window: DownWindow = field(default_factory=DownWindow)
    growth: GrowthLimit = field(default_factory=GrowthLimit)
    shrink: ShrinkLimit = field(default_factory=ShrinkLimit)
