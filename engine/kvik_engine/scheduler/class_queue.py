"""The waiting requests of one SLO class: the least served tenant first, then priority, then turn."""

from __future__ import annotations

import heapq
from bisect import insort
from collections import Counter, deque
from collections.abc import Callable
from itertools import count
from typing import NamedTuple

from kvik_engine.request import Request
from kvik_engine.scheduler.fairness import ServiceCounters
from kvik_engine.scheduler.tiers import TIERS

_Entry = tuple[int, float, int, Request]


class Waiting(NamedTuple):
    """Prompt tokens to compute of waiting requests: of all, and of those of each tier."""

    prompt_tokens: int
    by_tier: tuple[int, ...]

    def plus(self, tokens: int, tier: int) -> Waiting:
        by_tier = (*self.by_tier[:tier], self.by_tier[tier] + tokens, *self.by_tier[tier + 1 :])
        return Waiting(self.prompt_tokens + tokens, by_tier)


NONE_WAITING = Waiting(0, (0,) * TIERS)


class ClassQueue:
    """Entries of requests that no longer wait are dropped when they are met; `is_current` knows them."""

    def __init__(self, slo_class: int, served: ServiceCounters, is_current: Callable[[Request], bool]) -> None:
        self._slo_class = slo_class
        self._served = served
        self._is_current = is_current
        self._order = count()
        self._heaps: dict[str, list[_Entry]] = {}
        self._by_service: list[tuple[float, int, str]] = []
        """A heap of the tenants in `_heaps` by what they had been served when last looked at, which only grows."""
        self._arrivals: deque[Request] = deque()
        self._tenants: Counter[str] = Counter()
        self.aged_turn_at: float | None = None
        """When a request of this class was last admitted for its age."""
        self.tokens = NONE_WAITING
        """Of all waiting requests of the class."""
        self.tokens_of: dict[str, Waiting] = {}
        """By tenant."""

    def __len__(self) -> int:
        return self._tenants.total()

    @property
    def prompt_tokens(self) -> int:
        """Prompt tokens to compute of all waiting requests of the class."""
        return self.tokens.prompt_tokens

    def tokens_below(self, tier: int) -> int:
        """Prompt tokens to compute of the waiting requests of lower tiers."""
        return sum(self.tokens.by_tier[:tier])

    def of_tenant(self, tenant: str) -> int:
        """Waiting requests of a tenant."""
        return self._tenants[tenant]

    def served(self, tenant: str) -> float:
        """Weighted tokens by which tenants take turns."""
        return self._served.served(self._slo_class, tenant)

    def served_once_waiting(self, tenant: str) -> float:
        """The same for a tenant whose request comes now: it may have to give up what it did not use."""
        waits = tenant in self._tenants
        return self.served(tenant) if waits else self._served.lifted(self._slo_class, tenant, self._tenants)

    @property
    def tenants(self) -> list[str]:
        """Tenants with waiting requests."""
        return list(self._tenants)

    def joins(self, request: Request) -> None:
        """Count a request in. It is not found before `enqueue`."""
        if request.tenant not in self._tenants:
            self._served.joins(self._slo_class, request.tenant, self._tenants)
        self._tenants[request.tenant] += 1
        self._count_tokens(request, request.to_compute)

    def leaves(self, request: Request) -> None:
        """Count a request out."""
        self._tenants[request.tenant] -= 1
        self._count_tokens(request, -request.to_compute)
        if not self._tenants[request.tenant]:
            del self._tenants[request.tenant]
            del self.tokens_of[request.tenant]
            self._served.leaves(self._slo_class, request.tenant)

    def _count_tokens(self, request: Request, tokens: int) -> None:
        self.tokens = self.tokens.plus(tokens, request.tier)
        self.tokens_of[request.tenant] = self.tokens_of.get(request.tenant, NONE_WAITING).plus(tokens, request.tier)

    def enqueue(self, request: Request) -> None:
        entry = (request.priority, request.turn, next(self._order), request)
        if request.tenant not in self._heaps:
            self._heaps[request.tenant] = []
            served = self._served.served(self._slo_class, request.tenant)
            heapq.heappush(self._by_service, (served, entry[2], request.tenant))
        heapq.heappush(self._heaps[request.tenant], entry)
        if self._arrivals and self._arrivals[-1].arrival > request.arrival:
            insort(self._arrivals, request, key=lambda other: other.arrival)
        else:
            self._arrivals.append(request)

    def best(self) -> Request | None:
        """The next one in order."""
        while self._by_service:
            noted, order, tenant = self._by_service[0]
            top = self._top(tenant)
            served = self._served.served(self._slo_class, tenant)
            if top is None:
                heapq.heappop(self._by_service)
                del self._heaps[tenant]
            elif served > noted:
                heapq.heapreplace(self._by_service, (served, order, tenant))
            else:
                return top
        return None

    def oldest(self) -> Request | None:
        """The one that came first."""
        while self._arrivals and not self._is_current(self._arrivals[0]):
            self._arrivals.popleft()
        return self._arrivals[0] if self._arrivals else None

    def compact(self) -> None:
        """Drop all entries of requests that left, so that aborts behind a stuck request cannot pile up."""
        for tenant, heap in self._heaps.items():
            self._heaps[tenant] = [entry for entry in heap if self._is_current(entry[3])]
            heapq.heapify(self._heaps[tenant])
        self._arrivals = deque(filter(self._is_current, self._arrivals))

    def _top(self, tenant: str) -> Request | None:
        heap = self._heaps[tenant]
        while heap and not self._is_current(heap[0][3]):
            heapq.heappop(heap)
        return heap[0][3] if heap else None
