"""The runner's rows: which are free, and what happened to them between two plans, which the next one states."""

from __future__ import annotations

from typing import NamedTuple

from kvik_engine.kv.manager import Tables
from kvik_engine.request import Branch, Life
from kvik_engine.step import ChosenToken, Row, RowFork


class RowChanges(NamedTuple):
    """See StepPlan."""

    ended: tuple[Row, ...]
    splits: tuple[RowFork, ...]
    chosen: tuple[ChosenToken, ...]


class Rows:
    """A row is reserved for every branch at admission, started with the branch, and stated as ended once in a plan."""

    def __init__(self, total: int) -> None:
        self._free = [Row(row) for row in reversed(range(total))]
        self._ended: list[Row] = []
        self._splits: dict[Row, RowFork] = {}
        self._chosen: dict[Row, ChosenToken] = {}

    @property
    def free(self) -> int:
        return len(self._free)

    def reserve(self, branch: Branch) -> None:
        assert branch.row is None
        branch.row = self._free.pop()

    def split(self, source: Branch, target: Branch, tables: Tables) -> None:
        """The row reserved for `target` becomes a copy of the one that `source` has, with `target`'s tables."""
        assert source.row is not None
        assert target.row is not None
        self._splits[target.row] = RowFork(target.row, source.row, target.choice, tables)

    def choose_last(self, branch: Branch) -> None:
        """The last token that the host knows is not what the row sampled."""
        assert branch.row is not None
        position = len(branch.tokens) - 1
        self._chosen[branch.row] = ChosenToken(branch.row, position, branch.tokens[position])

    def give_back(self, branch: Branch) -> None:
        """The branch leaves its row, if it has one. Only a row that the runner knows of must be ended.

        What it was split from leaves no later than the next plan: a split of a row that ended could not be stated.
        """
        row, branch.row = branch.row, None
        if row is None:
            return
        self._free.append(row)
        self._chosen.pop(row, None)
        if self._splits.pop(row, None) is None and branch.life is Life.RUNNING:
            self._ended.append(row)

    def take_changes(self) -> RowChanges:
        """For the plan that states them."""
        changes = RowChanges(tuple(self._ended), tuple(self._splits.values()), tuple(self._chosen.values()))
        self._ended, self._splits, self._chosen = [], {}, {}
        return changes
