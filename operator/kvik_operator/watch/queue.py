"""Which pool to look at next: one entry per pool, exponential back-off with jitter, delayed looks. Pure, by `now`.

A key that is being worked on is never handed out twice at once; a change that comes meanwhile is kept for afterwards.
`Backoff` says how long to wait after the n-th failure in a row.
"""

import heapq
import itertools
import random
from collections import OrderedDict
from dataclasses import dataclass, field

from kvik_operator.names import PoolKey


@dataclass(frozen=True, slots=True)
class Backoff:
    """Seconds: `first` x 2^n, at most `cap`; the wait is drawn from the upper half, so that pools spread out."""

    first: float = 0.5
    cap: float = 30.0

    def delay(self, failures: int, rng: random.Random) -> float:
        full = min(self.cap, self.first * 2.0 ** min(failures - 1, 30))
        return full * (0.5 + 0.5 * rng.random())


@dataclass(slots=True)
class KeyQueue:
    """All times are monotonic seconds. Not thread-safe by itself: `watch/workers` holds the lock."""

    backoff: Backoff
    rng: random.Random
    _ready: OrderedDict[PoolKey, float] = field(default_factory=OrderedDict)
    """Waiting to be taken, in order; the value is when it became ready."""
    _later: list[tuple[float, int, PoolKey]] = field(default_factory=list)
    _due: dict[PoolKey, float] = field(default_factory=dict)
    """The one valid time in `_later` of a key; others are leftovers."""
    _busy: dict[PoolKey, float] = field(default_factory=dict)
    """Handed out and not given back; the value is when it was taken."""
    _again: set[PoolKey] = field(default_factory=set)
    _failures: dict[PoolKey, int] = field(default_factory=dict)
    _last_end: float = float("-inf")
    """When work on any key last ended."""
    _order: "itertools.count[int]" = field(default_factory=itertools.count)

    def add(self, key: PoolKey, now: float) -> None:
        """Something about the pool changed: look at it as soon as a worker is free."""
        if key in self._busy:
            self._again.add(key)
        elif key not in self._ready:
            self._due.pop(key, None)
            self._ready[key] = now

    def add_after(self, key: PoolKey, delay: float, now: float) -> None:
        """Look at the pool in `delay` seconds, unless it is looked at before; the earliest of several wins."""
        at = now + max(0.0, delay)
        if key in self._ready or self._due.get(key, at + 1) <= at:
            return
        self._due[key] = at
        heapq.heappush(self._later, (at, next(self._order), key))

    def take(self, now: float) -> PoolKey | None:
        """The next pool to work on; it stays busy until `done` or `failed`. None: nothing is ready."""
        self._promote(now)
        if not self._ready:
            return None
        key, _ = self._ready.popitem(last=False)
        self._busy[key] = now
        return key

    def done(self, key: PoolKey, now: float, requeue_after: float | None = None) -> None:
        """The work succeeded: its failures are forgotten."""
        self._failures.pop(key, None)
        self._release(key, now, requeue_after)

    def failed(self, key: PoolKey, now: float, at_least: float | None = None) -> float:
        """The work failed: try again after the back-off, or after `at_least` if that is longer. Returns the delay.

        A change that came meanwhile waits for the back-off too, else a pool that fails and is noisy would spin.
        """
        self._failures[key] = self._failures.get(key, 0) + 1
        delay = max(self.backoff.delay(self._failures[key], self.rng), at_least or 0.0)
        self._again.discard(key)
        self._release(key, now, delay)
        return delay

    def outdated(self, key: PoolKey, now: float) -> None:
        """The work was done on old knowledge: look again when the watch brings news, or shortly.

        No failure: after an outage the first look often comes before the watch, and must not wait out a back-off.
        """
        self._release(key, now, self.backoff.delay(1, self.rng))

    def next_due(self, now: float) -> float | None:
        """Seconds until something is ready: 0 now, None never."""
        self._promote(now)
        if self._ready:
            return 0.0
        return max(0.0, self._later[0][0] - now) if self._later else None

    def oldest_age(self, now: float) -> float:
        """Seconds that the longest waiting ready key or the longest running work has taken; 0 when idle."""
        self._promote(now)
        since = [*itertools.islice(self._ready.values(), 1), *self._busy.values()]
        return max((now - at for at in since), default=0.0)

    def stuck_for(self, now: float) -> float:
        """Seconds that one piece of work has run, or that nothing has ended although keys wait; 0 when idle or busy.

        A long queue that is being worked off is no sign of trouble.
        """
        self._promote(now)
        since = [*self._busy.values()]
        since += [max(at, self._last_end) for at in itertools.islice(self._ready.values(), 1)]
        return max((now - at for at in since), default=0.0)

    def depth(self) -> int:
        """Keys that wait to be taken now."""
        return len(self._ready)

    def _release(self, key: PoolKey, now: float, after: float | None) -> None:
        del self._busy[key]
        self._last_end = now
        if key in self._again:
            self._again.remove(key)
            self.add(key, now)
        elif after is not None:
            self.add_after(key, after, now)

    def _promote(self, now: float) -> None:
        while self._later and (self._later[0][0] <= now or self._due.get(self._later[0][2]) != self._later[0][0]):
            at, _, key = heapq.heappop(self._later)
            if self._due.get(key) == at:
                del self._due[key]
                self.add(key, at)
