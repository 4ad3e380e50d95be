"""When a batch takes more requests in: at every step, or, for comparison, only when the one before it is done."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from kvik_engine.request import Request


class Batching(Protocol):
    """Asked before each admission, told after each step."""

    def open_to_more(self, running: Sequence[Request]) -> bool: ...

    def planned(self, *, tokens_left: bool) -> None:
        """A step is planned. With `tokens_left`, everything that could be admitted was."""
        ...


class ContinuousBatching:
    """Requests join and leave at every step (Orca, OSDI '22). The product's choice."""

    def open_to_more(self, running: Sequence[Request]) -> bool:
        return True

    def planned(self, *, tokens_left: bool) -> None:
        pass


class StaticBatching:
    """A batch takes what waits, as far as rows and room go, and the next one begins when all of it has ended.

    For comparison only. Rows that ended are not computed on as padding, so it is better here than where it is used.
    """

    def __init__(self) -> None:
        self._open = True

    def open_to_more(self, running: Sequence[Request]) -> bool:
        if not running:
            self._open = True
        return self._open

    def planned(self, *, tokens_left: bool) -> None:
        if tokens_left:
            self._open = False
