"""How much each tenant was served, so that the least served is next (virtual token counters: Sheng et al., OSDI '24).

Counters are kept by class: a tenant's batch work does not count against its interactive requests. A tenant that comes
back after a pause is lifted to the least served of those that wait, so that nobody saves up credit. Tokens found in
the prefix cache or computed again after preemption are not charged: they are the engine's gain and its own fault.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

PROMPT_WEIGHT = 1.0
OUTPUT_WEIGHT = 2.0
"""An output token keeps a row for a step; the paper's weights."""


class ServiceCounters:
    """Weighted tokens by class and tenant. Tenants come from a file of keys, so there are few."""

    def __init__(self) -> None:
        self._served: defaultdict[tuple[int, str], float] = defaultdict(float)
        self._last_left: dict[int, str] = {}

    def served(self, slo_class: int, tenant: str) -> float:
        return self._served.get((slo_class, tenant), 0.0)

    def charge_prompt(self, slo_class: int, tenant: str, tokens: int) -> None:
        """The tenant got so many tokens of a prompt computed."""
        self._served[slo_class, tenant] += PROMPT_WEIGHT * tokens

    def charge_output(self, slo_class: int, tenant: str) -> None:
        """The tenant got an output token."""
        self._served[slo_class, tenant] += OUTPUT_WEIGHT

    def joins(self, slo_class: int, tenant: str, waiting: Iterable[str]) -> None:
        """A tenant without a waiting request gets one; `waiting` are those that have some already."""
        self._served[slo_class, tenant] = self.lifted(slo_class, tenant, waiting)

    def lifted(self, slo_class: int, tenant: str, waiting: Iterable[str]) -> float:
        """What a tenant without a waiting request will count as served once it gets one."""
        others = [self.served(slo_class, other) for other in waiting]
        last = self._last_left.get(slo_class)
        floor = min(others) if others else self.served(slo_class, last) if last is not None else 0.0
        return max(self.served(slo_class, tenant), floor)

    def leaves(self, slo_class: int, tenant: str) -> None:
        """The last waiting request of a tenant was admitted or ended."""
        self._last_left[slo_class] = tenant
