"""What the deciders would do on a trace: `pool_load` and `decide` in a closed loop with simulated pods. Pure.

The planner ships with it: whoever changes a rule or a constant there, or asks why a pool scaled as it did, tries it on
a trace without a cluster. What scaling must keep is tested on it: bounds, no flapping at constant load, one doubling at
a time. Nothing of it runs in the operator.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from kvik_operator.autoscale.decide import decide
from kvik_operator.autoscale.load import pool_load
from kvik_operator.autoscale.types import PERIOD_SECONDS, Decision, EngineState, LoadReading, PodSample, ScalePolicy
from kvik_operator.autoscale.windows import PoolMemory


@dataclass(frozen=True, slots=True)
class Gauges:
    """What one warm pod would report. `None` in place of this: the pod does not answer."""

    kv: float
    """Fraction 0-1 of the blocks that are owned."""
    waiting: int = 0
    waiting_prompt_tokens: int = 0
    prefill_tokens_per_second: float | None = 1000.0
    refused_total: int = 0


Trace = Callable[[float, int], Sequence[Gauges | None]]
"""(seconds, warm pods) -> what each warm pod reports then."""


@dataclass(frozen=True, slots=True)
class Moment:
    """One decision; `warm` pods reported, `replicas` is what the pool asks for after it."""

    at: float
    warm: int
    replicas: int
    decision: Decision


@dataclass(slots=True)
class _Pod:
    uid: str
    warm_at: float
    readings: tuple[LoadReading, ...] = field(default=())


def simulate(
    trace: Trace, policy: ScalePolicy, *, seconds: float, replicas: int = 1, startup: float = 0.0
) -> list[Moment]:
    """Every pod of the start is warm; later ones take `startup` seconds. The newest pods go first."""
    memory, moments = PoolMemory(), []
    pods = [_Pod(f"pod-{n}", 0.0) for n in range(replicas)]
    made = replicas
    now = 0.0
    while now <= seconds:
        warm = [pod for pod in pods if pod.warm_at <= now]
        for pod, gauges in zip(warm, trace(now, len(warm)), strict=True):
            if gauges is not None:
                pod.readings = (_reading(now, gauges), *pod.readings)[:3]
        samples = [PodSample(pod.uid, pod.warm_at <= now, pod.readings) for pod in pods]
        decision = decide(pool_load(samples, policy, now), len(pods), policy, memory, now)
        wanted = len(pods) if decision.desired is None else decision.desired
        while len(pods) < wanted:
            pods.append(_Pod(f"pod-{made}", now + startup))
            made += 1
        del pods[wanted:]
        moments.append(Moment(now, len(warm), len(pods), decision))
        now += PERIOD_SECONDS
    return moments


def _reading(now: float, gauges: Gauges) -> LoadReading:
    return LoadReading(
        at=now,
        state=EngineState.READY,
        kv_blocks_used=round(gauges.kv * 10_000),
        kv_blocks_total=10_000,
        running=0,
        waiting=gauges.waiting,
        refused_total=gauges.refused_total,
        waiting_prompt_tokens=gauges.waiting_prompt_tokens,
        prefill_tokens_per_second=gauges.prefill_tokens_per_second,
        warm_since="2026-01-01T00:00:00Z",
    )
