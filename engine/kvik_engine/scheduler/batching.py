"""When a batch takes more requests in: at every step, or, for comparison, only when the one before it is done."""

from __future__ import annotations

from typing import Protocol


class Batching(Protocol):
    """Told of each step before it is planned, asked before each admission, told of what came of it."""

    def begin(self, *, running: int, waiting: int, free_rows: int) -> None:
        """A step is about to be planned over so many requests."""
        ...

    def open_to_more(self) -> bool: ...

    def admitted(self) -> None:
        """One of the waiting requests runs now."""
        ...

    def full(self) -> None:
        """One of them found no rows or no room in this step."""
        ...


class ContinuousBatching:
    """Requests join and leave at every step (Orca, OSDI '22). The product's choice."""

    def begin(self, *, running: int, waiting: int, free_rows: int) -> None:
        pass

    def open_to_more(self) -> bool:
        return True

    def admitted(self) -> None:
        pass

    def full(self) -> None:
        pass


class StaticBatching:
    """A batch takes what waits when it begins, as far as rows and room go; the next begins when all of it has ended.

    Its prompts may take several steps, and who comes meanwhile waits for the next batch, or takes the place of one that
    was aborted before it ran: places are counted, not named. For comparison only. Rows that ended are not computed on
    as padding, so it is better here than where it is used.
    """

    def __init__(self) -> None:
        self._places = 0
        """Of the batch, not taken yet."""

    def begin(self, *, running: int, waiting: int, free_rows: int) -> None:
        if not running:
            self._places = min(waiting, free_rows)

    def open_to_more(self) -> bool:
        return self._places > 0

    def admitted(self) -> None:
        self._places -= 1

    def full(self) -> None:
        self._places = 0
