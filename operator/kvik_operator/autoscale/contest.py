"""Whether somebody else also scales the pool. Pure, by `now` in monotonic seconds.

Two writers of one number flap for ever (LLMKube #484: 41 times in 14 minutes), so after three foreign changes within
ten minutes we stop and say so, until ten minutes have passed without one.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Final

FOREIGN_CHANGES: Final = 3
WITHIN_SECONDS: Final = 600.0
OWN_ECHO_SECONDS: Final = 60.0
"""A value we wrote may come back through the watch this late."""


@dataclass(slots=True)
class Contest:
    _observed: int | None = None
    _own: deque[tuple[float, int]] = field(default_factory=deque)
    _last_written: tuple[float, int] | None = None
    _foreign: deque[float] = field(default_factory=deque)
    """Those of the last WITHIN_SECONDS; empty: so long there has been none."""
    _contested: bool = False

    def observe(self, replicas: int, now: float) -> None:
        """What the pool asks for now, as the watch says."""
        while self._own and now - self._own[0][0] > OWN_ECHO_SECONDS:
            self._own.popleft()
        while self._foreign and now - self._foreign[0] > WITHIN_SECONDS:
            self._foreign.popleft()
        changed = self._observed is not None and replicas != self._observed
        if changed and replicas not in {value for _, value in self._own}:
            self._foreign.append(now)
        # Once it is contested it stays so until the last change is that old, and not only until the first one is.
        self._contested = len(self._foreign) >= FOREIGN_CHANGES or (self._contested and bool(self._foreign))
        self._observed = replicas

    def wrote(self, replicas: int, now: float) -> None:
        self.may_have_written(replicas, now)
        self._last_written = (now, replicas)

    def may_have_written(self, replicas: int, now: float) -> None:
        """Nobody said whether it was carried out. If it was, it is no foreign change; if not, it is tried again."""
        self._own.append((now, replicas))

    def awaits(self, replicas: int, now: float, patience: float) -> bool:
        """Whether we wrote this number less than `patience` seconds ago and the watch has not brought it yet."""
        if self._last_written is None:
            return False
        at, written = self._last_written
        return written == replicas and now - at < patience

    def contested(self) -> bool:
        return self._contested
