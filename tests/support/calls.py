"""Counts what code does, where a test of its speed would have to look at a clock."""

from __future__ import annotations

import sys
from types import FrameType


class Calls:
    """Counts Python and C calls while it is entered."""

    def __init__(self) -> None:
        self.count = 0

    def __enter__(self) -> Calls:
        self._before = sys.getprofile()
        sys.setprofile(self._note)
        return self

    def __exit__(self, *error: object) -> None:
        sys.setprofile(self._before)

    def _note(self, frame: FrameType, event: str, argument: object) -> None:
        self.count += event in ("call", "c_call")
