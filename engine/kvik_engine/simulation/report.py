"""What a simulation showed: latencies by class and tenant, goodput, the pool. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType
from typing import Any

from kvik_engine.simulation.clients import Record
from kvik_engine.simulation.simulate import Outcome


@dataclass(frozen=True, slots=True)
class Target:
    """Seconds that a request must keep to; None is no bound."""

    ttft: float | None
    tpot: float | None

    def met(self, record: Record) -> bool:
        """Whether a request finished within its bounds."""
        return record.finished and _within(record.ttft, self.ttft) and _within(record.tpot, self.tpot)


CLASS_TARGETS: Mapping[str, Target] = MappingProxyType(
    {"interactive": Target(0.5, 0.04), "balanced": Target(2.0, 0.08), "batch": Target(None, None)}
)
"""What the SLO classes promise (docs/pools.md)."""


def class_targets(slo_class: str, ttft: float | None) -> Mapping[str, Target]:
    """The classes' targets, with `ttft` seconds for the engine's own class where it is told so (`--slo-ttft`)."""
    if ttft is None:
        return CLASS_TARGETS
    return {**CLASS_TARGETS, slo_class: replace(CLASS_TARGETS[slo_class], ttft=ttft)}


@dataclass(frozen=True, slots=True)
class Spread:
    """Percentiles in seconds, by nearest rank."""

    p50: float
    p90: float
    p99: float
    most: float

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Spread | None:
        """None without any value."""
        known = sorted(value for value in values if value is not None)
        return cls(*(percentile(known, p) for p in (0.5, 0.9, 0.99, 1.0))) if known else None


@dataclass(frozen=True, slots=True)
class Group:
    """The requests of one class and one tenant; None stands for all of them."""

    slo_class: str | None
    tenant: str | None
    requests: int
    finished: int
    refused: int
    output_tokens_per_second: float
    goodput: float
    """Requests a second that met every target of their class."""
    ttft: Spread | None
    tpot: Spread | None
    e2e: Spread | None


@dataclass(frozen=True, slots=True)
class Report:
    """All of a simulation. `fill` is tokens over the slots of owned blocks, `utilization` owned over all blocks."""

    groups: Sequence[Group]
    steps: int
    seconds: float
    wall_seconds: float
    blocks: int
    utilization: float
    fill: float | None
    mean_running: float
    most_running: int
    preemptions: int
    swaps: int
    """Preemptions that kept the KV in the swap space; the others compute it again."""
    swap_blocks: int
    """That the swap space has."""
    swapped_out: int
    """Blocks that were copied to the swap space, of preempted requests and of evicted prefixes."""
    swapped_in: int
    prefix_hit_fraction: float | None

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        return "\n".join([_HEAD, *(_line(group) for group in self.groups), "", self._summary()])

    def _summary(self) -> str:
        hits = "none asked" if self.prefix_hit_fraction is None else f"{self.prefix_hit_fraction:.0%}"
        return (
            f"{self.seconds:.1f} s simulated in {self.wall_seconds:.1f} s, {self.steps} steps; "
            f"running {self.mean_running:.1f} (at most {self.most_running}); KV {self.blocks} blocks, "
            f"utilization {self.utilization:.0%}, fill {0 if self.fill is None else self.fill:.1%}; "
            f"preemptions {self.preemptions}{self._swapping()}; prefix hits {hits}"
        )

    def _swapping(self) -> str:
        if not self.swap_blocks:
            return ""
        moved = f"{self.swapped_out} out, {self.swapped_in} in"
        return f", {self.swaps} swapped; swap space {self.swap_blocks} blocks, {moved}"


def report(outcome: Outcome, targets: Mapping[str, Target] = CLASS_TARGETS) -> Report:
    """Groups: all, each class, and each tenant of a class where there is more than one."""
    records, pool, counters = outcome.records, outcome.pool, outcome.counters
    kinds = sorted({(r.request.slo_class, r.request.tenant) for r in records}, key=lambda kind: (kind[0], kind[1]))
    keys: list[tuple[str | None, str | None]] = [(None, None)]
    for slo_class in dict.fromkeys(kind[0] for kind in kinds):
        tenants = [tenant for of, tenant in kinds if of == slo_class]
        keys.append((slo_class, None))
        keys += [(slo_class, tenant) for tenant in tenants if len(tenants) > 1]
    queries = counters.prefix_query_tokens
    return Report(
        groups=[_group(records, slo_class, tenant, outcome.seconds, targets) for slo_class, tenant in keys],
        steps=outcome.steps,
        seconds=outcome.seconds,
        wall_seconds=outcome.wall_seconds,
        blocks=outcome.ledger.blocks,
        utilization=pool.utilization / max(1, pool.steps),
        fill=pool.fill / pool.filled_steps if pool.filled_steps else None,
        mean_running=pool.running / max(1, pool.steps),
        most_running=pool.most_running,
        preemptions=counters.preemptions,
        swaps=counters.swaps,
        swap_blocks=outcome.offload.total,
        swapped_out=outcome.offload.swapped_out,
        swapped_in=outcome.offload.swapped_in,
        prefix_hit_fraction=counters.prefix_hit_tokens / queries if queries else None,
    )


def percentile(ordered: Sequence[float], fraction: float) -> float:
    """Nearest rank in an ordered, non-empty sequence."""
    return ordered[max(0, math.ceil(fraction * len(ordered)) - 1)]


def _group(
    records: Sequence[Record],
    slo_class: str | None,
    tenant: str | None,
    seconds: float,
    targets: Mapping[str, Target],
) -> Group:
    own = [
        record
        for record in records
        if slo_class in (None, record.request.slo_class) and tenant in (None, record.request.tenant)
    ]
    return Group(
        slo_class=slo_class,
        tenant=tenant,
        requests=len(own),
        finished=sum(record.finished for record in own),
        refused=sum(record.refused is not None for record in own),
        output_tokens_per_second=sum(record.tokens for record in own) / seconds if seconds else 0.0,
        goodput=sum(targets[r.request.slo_class].met(r) for r in own) / seconds if seconds else 0.0,
        ttft=Spread.of(record.ttft for record in own),
        tpot=Spread.of(record.tpot for record in own),
        e2e=Spread.of(record.e2e for record in own),
    )


def _within(value: float | None, bound: float | None) -> bool:
    return bound is None or value is None or value <= bound


_HEAD = (
    f"{'class':<12}{'tenant':<10}{'requests':>9}{'done':>7}{'refused':>8}{'tokens/s':>9}{'goodput/s':>10}"
    f"{'TTFT p50':>10}{'p90':>8}{'p99':>8}{'TPOT p50':>10}{'p99':>8}{'E2E p50':>9}{'p99':>8}"
)


def _line(group: Group) -> str:
    ttft, tpot, e2e = group.ttft, group.tpot, group.e2e
    return (
        f"{group.slo_class or 'all':<12}{'all' if group.tenant is None else group.tenant:<10}{group.requests:>9}"
        f"{group.finished:>7}{group.refused:>8}{group.output_tokens_per_second:>9.0f}{group.goodput:>10.2f}"
        + (f"{ttft.p50:>10.3f}{ttft.p90:>8.3f}{ttft.p99:>8.3f}" if ttft else f"{'-':>10}{'-':>8}{'-':>8}")
        + (f"{tpot.p50:>10.4f}{tpot.p99:>8.4f}" if tpot else f"{'-':>10}{'-':>8}")
        + (f"{e2e.p50:>9.2f}{e2e.p99:>8.2f}" if e2e else f"{'-':>9}{'-':>8}")
    )
