"""Say why a pool has as many pods as it has: what each pod reports, what wins, and what it would take to change it.

The figures are of this moment and the pods' own; the operator also looks at the reading before (up on the lower of the
two, down on the higher) and counts refused requests as waiting. What it decided last stands below them in its words.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kvik_kubectl.load import GROWTH_SECONDS, SHRINK_PERIODS, Full, PodLoad, terms, total, winner
from kvik_kubectl.pods import loads_of
from kvik_kubectl.session import Session
from kvik_kubectl.text import age, percent, pods, table

HELP = "say why a pool has as many pods as it has"
_HEADER = ("POD", "KV", "QUEUE", "TTFT", "LOAD")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pool", metavar="POOL", help="name of the InferencePool")


def run(options: argparse.Namespace, session: Session) -> None:
    pool = session.cluster.pool(options.pool)
    full = Full.of(pool)
    if full is None or not _replicas(pool):
        session.say(f"{options.pool}: {_unscaled(pool)}")
        return
    loads = loads_of(session.cluster, options.pool)
    for line in (*_now(options.pool, pool, loads, full), *_thresholds(_replicas(pool), full), *_driver(pool)):
        session.say(line)
    for line in _told(pool, session):
        session.say(line)


def _unscaled(pool: Mapping[str, Any]) -> str:
    """Why nobody scales the pool now."""
    count = _replicas(pool)
    if not pool["spec"].get("scaling"):
        return f"{pods(count)}, as spec.replicas says; it has no spec.scaling"
    if not count:
        return "stopped: spec.replicas is 0, and nobody scales it before that is 1 or more"
    return f"{pods(count)} asked for; its operator has not looked at spec.scaling yet"


def _now(name: str, pool: Mapping[str, Any], loads: Sequence[PodLoad], full: Full) -> Iterator[str]:
    ready = (pool.get("status") or {}).get("readyReplicas", 0)
    yield f"{name}: {pods(_replicas(pool))} asked for, {ready} ready, of {full.least} to {full.most}"
    yield ""
    rows = [_row(load, full) for load in loads]
    load = total(loads, full)
    yield from table(_HEADER, [*rows, ("all", "", "", "", percent(load))])
    yield ""
    warm = pods(sum(pod.warm for pod in loads), "warm ")
    yield f"{percent(load)} of a full pod / {percent(full.target)} -> {_wanted(load, full)}, from {warm}"


def _row(load: PodLoad, full: Full) -> tuple[str, ...]:
    if not load.warm:
        return (load.pod, load.state, "", "", "-")
    found = terms(load, full)
    named = winner(found)
    ttft = "-"
    if full.ttft is not None and load.predicted_ttft is not None:
        ttft = f"{load.predicted_ttft:.1f}s of {full.ttft:g}s"
    return (
        load.pod,
        f"{percent(load.kv)} of {percent(full.kv)}",
        f"{load.waiting or 0:.0f} of {full.queue}",
        ttft,
        "-" if named is None else f"{percent(found[named])} {named}",
    )


def _wanted(load: float, full: Full) -> int:
    """Before any limit; at least 1."""
    return max(1, -int(-(load / full.target - 1e-9) // 1))


def _thresholds(replicas: int, full: Full) -> Iterator[str]:
    if replicas >= full.most:
        yield f"more: no, spec.scaling.maxReplicas is {full.most}"
    else:
        load = percent(full.least_load_for_more(replicas))
        yield f"more: above {load} twice in a row, at once; at most doubling in {GROWTH_SECONDS} s"
    if replicas <= full.least:
        yield f"fewer: no, spec.scaling.minReplicas is {full.least}"
    else:
        load, step = percent(full.most_load_for_fewer(replicas)), full.step(replicas)
        period = full.window / SHRINK_PERIODS
        yield f"fewer: up to {load} for {full.window:g} s on end; then {step} in {period:.0f} s at the most"


def _driver(pool: Mapping[str, Any]) -> Iterator[str]:
    """Who writes the replicas, where it is not the operator."""
    match pool["spec"]["scaling"].get("driver"):
        case "HPA":
            yield "driver HPA: its HorizontalPodAutoscaler follows within 15 s, and to fewer after 60 s more"
        case "KEDA":
            yield "driver KEDA: KEDA's autoscaler follows within 15 s, and to fewer after 60 s more"
        case "External":
            yield "driver External: the operator only says so; whoever writes spec.replicas decides"


def _told(pool: Mapping[str, Any], session: Session) -> Iterator[str]:
    status = pool.get("status") or {}
    scaling = status.get("scaling") or {}
    conditions = status.get("conditions") or ()
    active = next((one for one in conditions if one.get("type") == "ScalingActive"), None)
    if active is not None:
        decided = scaling.get("lastDecisionTime")
        ago = "" if decided is None else f", {age(decided, session.utcnow())} ago"
        yield f"operator{ago}: {active.get('reason')}: {active.get('message')}"
    changes = scaling.get("history") or ()
    for change in changes:
        ago, what = age(change.get("time", ""), session.utcnow()), f"{change.get('from')} -> {change.get('to')}"
        yield f"{ago} ago: {what} on {change.get('winner')}: {change.get('formula')}"


def _replicas(pool: Mapping[str, Any]) -> int:
    return int((pool.get("spec") or {}).get("replicas", 1))
