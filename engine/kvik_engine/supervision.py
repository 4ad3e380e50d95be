"""What launch decides when a process of the engine ends. Pure, standard library only."""

from __future__ import annotations

import signal
from collections import deque
from dataclasses import dataclass
from enum import Enum

from kvik_engine.exits import EXIT_START_ERROR

MAX_DEATHS = 3
DEATHS_WINDOW_SECONDS = 300.0
_STOPPED_EARLY = (-signal.SIGTERM, -signal.SIGINT)
"""Of a process that was told to stop before it listened to signals."""


class Process(Enum):
    """The two processes that launch supervises."""

    API = "api"
    CORE = "core"


@dataclass(frozen=True, slots=True)
class RestartCore:
    """Start a new core; the API stays."""


@dataclass(frozen=True, slots=True)
class Finish:
    """Stop what still runs and exit; `line` is for the termination log."""

    code: int
    line: str | None = None


@dataclass(frozen=True, slots=True)
class Carry:
    """Nothing to do: this end was expected."""


Verdict = RestartCore | Finish | Carry


class Supervision:
    """Remembers deaths of the core. `stopping` is set once the engine was told to stop."""

    def __init__(self) -> None:
        self.stopping = False
        self._deaths: deque[float] = deque()

    def ended(self, process: Process, status: int, now: float) -> Verdict:
        """`status` is an exit code, or minus the signal. `now` is monotonic."""
        return self._api_ended(status) if process is Process.API else self._core_ended(status, now)

    def _api_ended(self, status: int) -> Verdict:
        if status == 0 or (self.stopping and status in _STOPPED_EARLY):
            return Finish(0)
        if status == EXIT_START_ERROR:
            return Finish(EXIT_START_ERROR)
        return Finish(1, f"ApiFailed: the API process ended with {describe(status)}")

    def _core_ended(self, status: int, now: float) -> Verdict:
        if self.stopping:
            return Carry()
        if status == EXIT_START_ERROR:
            return Finish(EXIT_START_ERROR)
        self._deaths.append(now)
        while now - self._deaths[0] > DEATHS_WINDOW_SECONDS:
            self._deaths.popleft()
        if len(self._deaths) >= MAX_DEATHS:
            return Finish(
                1,
                f"CoreFailed: the core process died {MAX_DEATHS} times within {DEATHS_WINDOW_SECONDS:g} s, "
                f"last with {describe(status)}",
            )
        return RestartCore()


def describe(status: int) -> str:
    """`exit code 3` or `signal 9`."""
    return f"signal {-status}" if status < 0 else f"exit code {status}"
