"""Whether the operator still does its work: the answer behind `/live`. `problems` is pure, `Heartbeat` collects.

kopf's own health endpoint stays green while the operator is locked up (dask-kubernetes #620). What counts here: each
event loop turns over, work gets done, the watches hear, and kopf runs while the API server answers.
An API server that is away, an API that is not installed or an RBAC rule that is missing is no reason to be restarted.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds. They add up with the probe's period and failure threshold."""

    loop_lag: float = 30.0
    stuck: float = 120.0
    feed_down: float = 120.0
    api_answered: float = 150.0
    """A LIST that succeeded this recently shows that the API server answers us."""


@dataclass(frozen=True, slots=True)
class Vitals:
    """Monotonic times in seconds; None: not so, or never yet."""

    beats: Mapping[str, float]
    """Event loop to its last beat."""
    stuck_for: float
    """Without progress although there is work."""
    deaf_since: float | None
    feed_down_since: float | None
    listed_at: float | None


def problems(vitals: Vitals, limits: Limits, now: float) -> tuple[str, ...]:
    """In words; empty: alive."""
    found = [
        f"loop {name} has not turned over for {now - at:.0f} s"
        for name, at in sorted(vitals.beats.items())
        if now - at > limits.loop_lag
    ]
    if vitals.stuck_for > limits.stuck:
        found.append(f"there is work, and none was finished for {vitals.stuck_for:.0f} s")
    if vitals.deaf_since is not None:
        found.append("a watch is deaf: the API server has newer objects than it brought")
    answers = vitals.listed_at is not None and now - vitals.listed_at <= limits.api_answered
    if answers and vitals.feed_down_since is not None and now - vitals.feed_down_since > limits.feed_down:
        found.append(f"nothing is watched for {now - vitals.feed_down_since:.0f} s although the API server answers")
    return tuple(found)


class Heartbeat:
    """Thread-safe. The sources are asked when the probe comes."""

    def __init__(
        self,
        *,
        limits: Limits,
        stuck_for: Callable[[], float],
        deaf_since: Callable[[], float | None],
        listed_at: Callable[[], float | None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limits = limits
        self._stuck_for = stuck_for
        self._deaf_since = deaf_since
        self._listed_at = listed_at
        self._clock = clock
        self._lock = threading.Lock()
        self._beats: dict[str, float] = {}
        self._feed_down_since: float | None = clock()
        self._api_awaited = False

    async def beat(self, loop_name: str, period: float = 1.0) -> None:
        """Runs in each event loop; the age of the last beat is that loop's lag. Its end is not a lag."""
        try:
            while True:
                with self._lock:
                    self._beats[loop_name] = self._clock()
                await asyncio.sleep(period)
        finally:
            with self._lock:
                self._beats.pop(loop_name, None)

    def api_awaited(self) -> None:
        """There is nothing to watch before somebody installs the API, or lets us see it: alive, and not ready."""
        self._api_awaited, self._feed_down_since = True, None

    def api_served(self) -> None:
        """From now on the watches are expected to run."""
        self._api_awaited = False
        self.feed_stopped()

    def watches_expected(self) -> bool:
        """Whether there is something to watch, as far as is known."""
        return not self._api_awaited

    def feed_started(self) -> None:
        self._feed_down_since = None

    def feed_stopped(self) -> None:
        """Counts from the first failure in a row."""
        if self._feed_down_since is None:
            self._feed_down_since = self._clock()

    def not_ready(self) -> tuple[str, ...]:
        """In words why this replica does not serve its purpose yet; empty: ready."""
        if self._api_awaited:
            return ("the API inferencepools.kvik.dev is not served yet",)
        return () if self._feed_down_since is None else ("nothing is watched yet",)

    def problems(self) -> tuple[str, ...]:
        with self._lock:
            beats = dict(self._beats)
        vitals = Vitals(beats, self._stuck_for(), self._deaf_since(), self._feed_down_since, self._listed_at())
        return problems(vitals, self._limits, self._clock())
