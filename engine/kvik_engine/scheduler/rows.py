"""The runner's rows: which are free, and which ended since the last plan."""

from __future__ import annotations

from kvik_engine.request import Branch, Life
from kvik_engine.step import Row


class Rows:
    """A row is reserved for every branch at admission, started with the branch, and stated as ended once in a plan."""

    def __init__(self, total: int) -> None:
        self._free = [Row(row) for row in reversed(range(total))]
        self._ended: list[Row] = []

    @property
    def free(self) -> int:
        return len(self._free)

    def reserve(self, branch: Branch) -> None:
        assert branch.row is None
        branch.row = self._free.pop()

    def give_back(self, branch: Branch) -> None:
        """The branch leaves its row, if it has one. Only a row that was started must be ended."""
        row, branch.row = branch.row, None
        if row is None:
            return
        self._free.append(row)
        if branch.life is Life.RUNNING:
            self._ended.append(row)

    def take_ended(self) -> tuple[Row, ...]:
        """The rows that ended, for the plan that states them."""
        ended, self._ended = tuple(self._ended), []
        return ended
