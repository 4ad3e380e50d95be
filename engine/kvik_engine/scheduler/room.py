"""Whether there is KV memory for a request: by blocks as it grows, or, for comparison, by all it may ever need."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from kvik_engine.kv.contiguous import ContiguousKVManager
from kvik_engine.kv.manager import KVManager
from kvik_engine.kv.prefix_cache import Hit
from kvik_engine.request import Request
from kvik_engine.scheduler import admission


class Room(Protocol):
    """What admission asks; the arguments are those of the functions in `admission`."""

    def can_ever_fit(self, request: Request, kv: KVManager, rows: int) -> bool: ...

    def has_room(
        self,
        request: Request,
        kv: KVManager,
        *,
        running: Sequence[Request],
        hit: Hit,
        owed: int,
        more_blocks: int,
        pool_was_full: bool,
    ) -> bool: ...


class PagedRoom:
    """Blocks for the prompt now, more as the answer grows, preemption when there are none. The product's choice."""

    can_ever_fit = staticmethod(admission.can_ever_fit)
    has_room = staticmethod(admission.has_room)


class ContiguousRoom:
    """One run of blocks for the longest that a request may become. For comparison only: one choice a request."""

    def can_ever_fit(self, request: Request, kv: KVManager, rows: int) -> bool:
        assert isinstance(kv, ContiguousKVManager)
        return request.params.n == 1 and kv.reservation(request) <= kv.pool.total

    def has_room(
        self,
        request: Request,
        kv: KVManager,
        *,
        running: Sequence[Request],
        hit: Hit,
        owed: int,
        more_blocks: int,
        pool_was_full: bool,
    ) -> bool:
        assert isinstance(kv, ContiguousKVManager)
        return kv.find_run(kv.reservation(request)) is not None
