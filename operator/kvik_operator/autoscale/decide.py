"""How many replicas a pool should have. Pure: `simulate` in simulate.py runs it against traces.

    desired = ceil(sum of the pods' loads / target)

Up at once, at most doubling per 15 s. Down only to what was enough at every moment of the stabilisation window, so the
load projected on the pods that stay was under the target all the time, with a third of it to spare: on fewer pods the
same requests are a larger load than in proportion, and without that room a pool under constant load would swing once a
window (dynamo PR #9294, decision 93). And down in small steps (`windows.ShrinkLimit` says why).

Missing data never makes a decision: with none at all the pool holds. Pods that are still starting count as capacity,
since `current` includes them.
"""

import math

from kvik_operator.autoscale.types import Decision, PoolLoad, ScalePolicy, Term
from kvik_operator.autoscale.windows import SHRINK_PERIODS, PoolMemory
from kvik_operator.counted import counted

DOWN_MARGIN = 1 / 3
"""A fraction of the target that must stay free on the pods that remain."""
_ROUNDING = 1e-9
"""Three pods at 75 % of 75 % are three pods, whatever the binary fractions say."""


def decide(load: PoolLoad, current: int, policy: ScalePolicy, memory: PoolMemory, now: float) -> Decision:
    """`current` is what the pool asks for now, at least 1."""
    bounded = min(max(current, policy.min_replicas), policy.max_replicas)
    if load.fresh == 0:
        return _without_data(load, current, bounded, policy, memory, now)
    memory.growth.note(now, current)
    memory.shrink.note(now, current, policy.stabilization)
    memory.window.add(now, _with_room(load, policy), policy.stabilization)
    if needed(load.up, policy) > bounded:
        return _up(load, current, bounded, policy, memory, now)
    return _down_or_hold(load, current, bounded, policy, memory, now)


def needed(load: float, policy: ScalePolicy) -> int:
    """Replicas for a load, before any limit; at least 1."""
    return max(1, math.ceil(load / policy.target - _ROUNDING))


def _with_room(load: PoolLoad, policy: ScalePolicy) -> int:
    """The fewest replicas that the load may be put on."""
    return needed(load.down / (1 - DOWN_MARGIN), policy)


def _up(load: PoolLoad, current: int, bounded: int, policy: ScalePolicy, memory: PoolMemory, now: float) -> Decision:
    wanted = needed(load.up, policy)
    desired = min(wanted, max(memory.growth.limit(), bounded), policy.max_replicas)
    limit = f"maxReplicas {policy.max_replicas}" if desired == policy.max_replicas else "at most doubling in 15 s"
    heard = f"{_percent(load.up / load.fresh)} of full x {counted(load.fresh, 'pod')}"
    return Decision(
        current=current,
        desired=desired,
        winner=load.winner if desired > bounded else Term.BOUNDS,
        load=load.up,
        formula=_formula(heard, policy, wanted, desired, limit),
        window_whole=memory.window.highest(now, policy.stabilization) is not None,
    )


def _down_or_hold(
    load: PoolLoad, current: int, bounded: int, policy: ScalePolicy, memory: PoolMemory, now: float
) -> Decision:
    wanted, enough = needed(load.down, policy), memory.window.highest(now, policy.stabilization)
    fewest = memory.shrink.limit()
    desired = bounded if enough is None else min(bounded, max(enough, policy.min_replicas, fewest))
    by_bounds = bounded != current if desired == bounded else enough is not None and enough < desired
    if desired == policy.min_replicas:
        limit = f"minReplicas {policy.min_replicas}"
    elif enough is not None and enough < fewest:
        limit = f"at most {counted(memory.shrink.step(), 'pod')} fewer in {policy.stabilization / SHRINK_PERIODS:.0f} s"
    else:
        limit = _kept_by(load, enough, policy)
    heard = f"{_percent((load.down - load.silent * policy.target) / load.fresh)} of full x {counted(load.fresh, 'pod')}"
    if load.silent:
        heard += f" + {load.silent} silent at {_percent(policy.target)}"
    return Decision(
        current=current,
        desired=desired,
        winner=Term.BOUNDS if by_bounds else load.winner,
        load=load.down,
        formula=_formula(heard, policy, wanted, desired, limit),
        window_whole=enough is not None,
    )


def _without_data(
    load: PoolLoad, current: int, bounded: int, policy: ScalePolicy, memory: PoolMemory, now: float
) -> Decision:
    say = "says" if load.silent == 1 else "say"
    silent = f"{load.silent} of its pods {say} nothing" if load.silent else "none of its pods is warm yet"
    whole = memory.window.highest(now, policy.stabilization) is not None
    if bounded != current:
        limits = f"between {policy.min_replicas} and {policy.max_replicas}: {current} -> {bounded}"
        return Decision(current, bounded, Term.BOUNDS, 0.0, limits, whole, blind=True)
    return Decision(current, None, Term.KV, 0.0, f"no load data: {silent}; holds at {current}", whole, blind=True)


def _kept_by(load: PoolLoad, enough: int | None, policy: ScalePolicy) -> str:
    if enough is None:
        return "the first window is not over"
    if _with_room(load, policy) >= enough:
        return f"fewer only up to {_percent(policy.target * (1 - DOWN_MARGIN))}"
    return f"needed within the last {policy.stabilization:.0f} s"


def _formula(heard: str, policy: ScalePolicy, wanted: int, desired: int, limit: str) -> str:
    """`60 % of full x 3 pods / 75 % -> 3`; the limit that changed the outcome is named behind it."""
    limited = f", {limit}: {desired}" if desired != wanted else ""
    return f"{heard} / {_percent(policy.target)} -> {wanted}{limited}"


def _percent(fraction: float) -> str:
    return f"{round(100 * fraction)} %"
