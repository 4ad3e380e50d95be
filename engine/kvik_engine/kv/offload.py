"""What the scheduler asks of memory beside the device's, where preempted KV and evicted prefixes go and come back from.

`NoOffload` is an engine without swap space; `kv.host_tier.HostTier` is one with it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from kvik_engine.kv.disk_tier import DiskUse
from kvik_engine.kv.prefix_cache import Hit
from kvik_engine.request import Branch, Request
from kvik_engine.step import SwapIn, SwapOut


class Load(Protocol):
    """What can be brought back for a waiting branch, and for those of its request that come with it."""

    @property
    def missing(self) -> int:
        """Blocks of the device that it takes out of the available ones."""
        ...


@dataclass(frozen=True, slots=True)
class OffloadUse:
    """Gauges and totals, in blocks."""

    total: int = 0
    owned: int = 0
    cached: int = 0
    swapped_out: int = 0
    swapped_in: int = 0
    disk: DiskUse = field(default_factory=DiskUse)


class Offload(Protocol):
    """A branch is Loading from `begin` until its blocks are filled; then `ready` is true and it may start."""

    @property
    def use(self) -> OffloadUse: ...

    @property
    def pending(self) -> bool:
        """Whether a step is due even without tokens to compute, because there is something to copy."""
        ...

    def advance(self) -> None:
        """Take in what arrived beside the steps since the last one was planned."""
        ...

    def give_way(self, request: Request, step: int) -> bool:
        """The request is preempted and its blocks are about to be released. Whether their content is kept."""
        ...

    def find(self, branch: Branch, hit: Hit) -> Load | None:
        """What goes beyond the device's own prefix hit of a waiting branch."""
        ...

    def begin(self, load: Load, step: int) -> bool:
        """The branches of `load` take their blocks and become Loading; False when it is gone meanwhile.

        `load.missing` blocks must be available.
        """
        ...

    def ready(self, branch: Branch) -> bool:
        """Whether all blocks of a Loading branch are filled."""
        ...

    def started(self, branch: Branch) -> None:
        """A ready branch runs."""
        ...

    def end(self, branch: Branch, accepted: int | None) -> None:
        """The branch ended in whatever state. Content behind `accepted` tokens is not to be found any more."""
        ...

    def take(self, step: int) -> tuple[tuple[SwapOut, ...], tuple[SwapIn, ...]]:
        """The copies of the step that is planned now."""
        ...

    def settle(self, step: int, seconds: float, prefill_tokens: int, full_rate: float | None) -> None:
        """The step is done; it took so long and computed so many tokens of prompts or recomputation. `full_rate` is
        what steps full of them compute in a second, None before it is known."""
        ...

    def check(self, *, idle: bool) -> None:
        """Raise BooksDoNotBalance when something was lost; when `idle`, no request and no step is left."""
        ...


class NoOffload:
    """Nothing is kept: preempted requests are computed again."""

    use = OffloadUse()
    pending = False

    def advance(self) -> None:
        pass

    def give_way(self, request: Request, step: int) -> bool:
        return False

    def find(self, branch: Branch, hit: Hit) -> None:
        return None

    def begin(self, load: Load, step: int) -> bool:
        raise AssertionError("there is nothing to load")

    def ready(self, branch: Branch) -> bool:
        raise AssertionError("nothing is loading")

    def started(self, branch: Branch) -> None:
        raise AssertionError("nothing is loading")

    def end(self, branch: Branch, accepted: int | None) -> None:
        pass

    def take(self, step: int) -> tuple[tuple[SwapOut, ...], tuple[SwapIn, ...]]:
        return (), ()

    def settle(self, step: int, seconds: float, prefill_tokens: int, full_rate: float | None) -> None:
        pass

    def check(self, *, idle: bool) -> None:
        pass
