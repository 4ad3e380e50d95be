"""How the branches of a request go on from what they sampled: the Protocol, and what the scheduler lends for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from kvik_engine.request import Branch, Finish
from kvik_engine.scheduler.news import News
from kvik_engine.step import Sample


class Hands(Protocol):
    """What a continuation can do to branches: the scheduler's side."""

    def accept(self, branch: Branch, token: int) -> None:
        """The branch's own last sample is its next token."""
        ...

    def split(self, source: Branch, target: Branch) -> None:
        """`target`, a new branch with the same tokens, goes on from all that `source` has, in a row of its own.

        `source` runs and has no step in flight; a row is free. Blocks are shared until one of the two writes.
        """
        ...

    def choose(self, branch: Branch, token: int) -> None:
        """`token` is the branch's next one, whatever it sampled."""
        ...

    def answered(self, outputs: int) -> None:
        """An answer of so many tokens is complete: the scheduler estimates others by it."""
        ...

    def end(self, branch: Branch, finish: Finish) -> None:
        """End a branch, give back what it holds, and end its request with the last one."""
        ...


class Continuation(Protocol):
    """Of one request. The scheduler asks it about samples that are no errors, of branches that have not ended."""

    def take(self, branch: Branch, sample: Sample, hands: Hands) -> Sequence[News]:
        """The branch sampled: carry out what follows, and tell what the client may hear of."""
        ...

    def named(self, live: Sequence[Branch], choice: int) -> Sequence[Branch]:
        """Which of the live branches are meant by the client's choice `choice`."""
        ...
