"""The pool's status and the Events about it. Pure: everything known in, one merge patch out."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, Literal

from kvik_operator.counted import counted
from kvik_operator.crd.conditions import Condition, find, timestamp, to_api
from kvik_operator.crd.inferencepool import InferencePool
from kvik_operator.errors import PoolError
from kvik_operator.names import LABEL_POOL, ChildKind, ConditionType, PoolKey, Reason
from kvik_operator.objects.engine_flags import too_old_for
from kvik_operator.objects.engine_image import version_of
from kvik_operator.objects.pod_template import mounted, termination_grace_seconds
from kvik_operator.objects.service import endpoint
from kvik_operator.reconcile.desired import wanted_replicas
from kvik_operator.reconcile.effective_status import effective_status, prune
from kvik_operator.reconcile.engine_choice import newer_engine
from kvik_operator.reconcile.findings import EngineTooOld, Findings
from kvik_operator.reconcile.pod_state import Patience, is_ready, live_pods, pod_state
from kvik_operator.reconcile.pool_conditions import FIXED_REPLICAS, pool_conditions
from kvik_operator.reconcile.rollout import template_hash
from kvik_operator.reconcile.startup_times import slowest_start
from kvik_operator.reconcile.types import (
    Applied,
    EngineInfo,
    Object,
    Observed,
    PlannedEvent,
    Revision,
    ScaleStep,
    ScalingReport,
    StatusUpdate,
)

Json = dict[str, Any]

MAX_HISTORY: Final = 5
MAX_FORMULA: Final = 256
_CALM: Final = frozenset(
    {Reason.STARTING, Reason.MODEL_FETCHING, Reason.MODEL_LOADING, Reason.STOPPED, Reason.PAUSED, Reason.PODS_READY}
    | {Reason.ROLLING_OUT, Reason.ROLLOUT_COMPLETE}
)


_SCALING_NEEDS_A_PERSON: Final = frozenset(
    {Reason.CONTESTED, Reason.METRICS_API_OFF, Reason.KEDA_OFF, Reason.KEDA_NOT_SERVED, Reason.AUTOSCALER_FAILED}
)


@dataclass(frozen=True, slots=True)
class Reports:
    """What engines and autoscaler said: infos by pod uid."""

    infos: Mapping[str, EngineInfo]
    scaling: ScalingReport | None
    outdated_keys: Collection[str] = ()
    """Uids of pods that go on with earlier API keys than the Secret's."""


@dataclass(frozen=True, slots=True)
class InUse:
    """The revision that was applied, and the engine image that the operator brings."""

    revision: Revision
    configured_image: str


def status_update(
    observed: Observed, wanted: int, applied: Applied, reports: Reports, in_use: InUse | None
) -> StatusUpdate:
    """`wanted` is the number of replicas asked for, within the bounds of `scaling`; `in_use` None: none was applied."""
    pods = live_pods(observed.pods)
    grace = timedelta(seconds=termination_grace_seconds(observed.effective.drain_timeout))
    patience = Patience(observed.effective.startup_timeout, grace)
    mounts = [] if in_use is None else mounted(in_use.revision.template)
    states = [pod_state(pod, observed.now, patience, mounts) for pod in pods]
    newest = template_hash(applied.children.get(ChildKind.DEPLOYMENT))
    ready_pods = [
        pod
        for pod, state in zip(pods, states, strict=True)
        if state.ready and newest in (None, state.template_hash)  # an older pod may serve another model
    ]
    infos = [info for pod in ready_pods if (info := reports.infos.get(pod["metadata"].get("uid", ""))) is not None]
    previous = observed.pool.status
    reached = in_use is not None and (previous.get("revision") or {}).get("current") == in_use.revision.name
    too_old = _too_old(in_use, observed)
    outdated_keys = sorted(state.name for state in states if state.uid in reports.outdated_keys)
    findings = Findings(wanted, states, infos, applied, reports.scaling, observed, reached, too_old, outdated_keys)
    conditions = to_api(
        pool_conditions(findings), previous.get("conditions") or (), observed.pool.generation, observed.now
    )
    status = prune(
        {
            "observedGeneration": observed.pool.generation,
            **_counts(observed.key, wanted, len(states), sum(state.ready for state in states)),
            "conditions": conditions,
            "revision": _revision(in_use, wanted, conditions, previous),
            "engine": _engine(in_use, infos, previous),
            "effective": _effective(in_use, observed, previous),
            "model": _model(infos) or previous.get("model"),
            "startup": slowest_start(ready_pods, reports.infos, observed.effective.startup_timeout)
            or previous.get("startup"),
            "scaling": None if observed.effective.scaling is None else _scaling(reports.scaling, previous),
        }
    )
    return _update(observed.key, observed.pool.uid, previous, status)


def invalid_spec(key: PoolKey, raw: Object, pods: Sequence[Object], error: PoolError, now: datetime) -> StatusUpdate:
    """The spec cannot be read: say which field, leave everything that runs alone. Ready pods still answer, and what
    there is of pods is told as ever. Of the roll nothing new is known."""
    previous, metadata = raw.get("status") or {}, raw["metadata"]
    generation = metadata.get("generation", 1)
    live = live_pods(pods)
    ready = sum(map(is_ready, live))
    written = to_api(_invalid(raw, ready, str(error)), previous.get("conditions") or (), generation, now)
    kept = [item for item in previous.get("conditions") or () if find(written, item["type"]) is None]
    status = {
        **previous,
        "observedGeneration": generation,
        **_counts(key, _asked_for(raw, len(live)), len(live), ready),
        "conditions": [*written, *kept],
    }
    return _update(key, metadata["uid"], previous, status)


def _invalid(raw: Object, ready: int, error: str) -> list[Condition]:
    degraded = Condition(ConditionType.DEGRADED, "True", Reason.INVALID_SPEC, error)
    if ready:
        some = counted(ready, "pod")
        serving = Condition(ConditionType.READY, "True", Reason.PODS_READY, f"{some} of an earlier specification ready")
        loaded = Condition(
            ConditionType.MODEL_LOADED, "True", Reason.MODEL_LOADED, f"loaded in {some} of an earlier specification"
        )
    else:
        serving = Condition(ConditionType.READY, "False", Reason.INVALID_SPEC, error)
        loaded = Condition(ConditionType.MODEL_LOADED, "False", Reason.INVALID_SPEC, error)
    if (raw.get("spec") or {}).get("scaling") is None:
        return [serving, loaded, FIXED_REPLICAS, degraded]
    scaling = Condition(ConditionType.SCALING_ACTIVE, "False", Reason.INVALID_SPEC, error)
    return [serving, loaded, scaling, degraded]


def _asked_for(raw: Object, there_are: int) -> int:
    """Replicas, as far as the spec can be read."""
    try:
        return wanted_replicas(InferencePool.from_object(raw).spec)
    except PoolError:
        replicas = (raw.get("spec") or {}).get("replicas")
        return replicas if isinstance(replicas, int) else there_are


def _counts(key: PoolKey, wanted: int, replicas: int, ready: int) -> Json:
    return {
        "ready": f"{ready}/{wanted}",
        "replicas": replicas,
        "readyReplicas": ready,
        "selector": f"{LABEL_POOL}={key.name}",
        "endpoint": endpoint(key),
    }


def _revision(in_use: InUse | None, wanted: int, conditions: Sequence[Object], previous: Object) -> Json | None:
    """`current` is what the last complete roll brought. In a stopped pool no roll brings anything."""
    before: Object = previous.get("revision") or {}
    if in_use is None:
        return dict(before) or None
    complete = wanted > 0 and (find(conditions, ConditionType.ROLLOUT_COMPLETE) or {}).get("status") == "True"
    return {"current": in_use.revision.name if complete else before.get("current"), "updated": in_use.revision.name}


def _engine(in_use: InUse | None, infos: Sequence[EngineInfo], previous: Object) -> Json | None:
    """The version is what ready pods say; while none is ready, what the last ones of this image said, or its tag."""
    before: Object = previous.get("engine") or {}
    if in_use is None:
        return dict(before) or None
    image, tag = in_use.revision.image, version_of(in_use.revision.image)
    known = before.get("version") if before.get("image") == image else None
    said = infos[0].version if infos else known
    return {
        "image": image,
        "version": said or (None if tag is None else str(tag)),
        "available": newer_engine(image, in_use.configured_image),
    }


def _too_old(in_use: InUse | None, observed: Observed) -> EngineTooOld | None:
    """What the pool sets and the engine of its revision does not have."""
    version = None if in_use is None else version_of(in_use.revision.image)
    fields = too_old_for(observed.pool.spec, version)
    return EngineTooOld(version, tuple(fields)) if version is not None and fields else None


def _effective(in_use: InUse | None, observed: Observed, previous: Object) -> Json:
    """The values of what was applied; while nothing can be, those that were told last."""
    before: Object | None = previous.get("effective")
    return effective_status(observed.effective) if in_use is not None or before is None else dict(before)


def _model(infos: Sequence[EngineInfo]) -> Json | None:
    """As the ready pods report it; the smallest where their capacities differ."""
    if not infos:
        return None
    first = infos[0]
    return prune(
        {
            "name": first.model_name,
            "revision": first.revision,
            "digest": first.digest,
            "parameters": first.parameters,
            "dtype": first.dtype,
            "quantization": first.quantization,
            "contextTokens": _least([info.context for info in infos]),
            "kvKeyDtype": first.kv_key_dtype,
            "kvValueDtype": first.kv_value_dtype,
            "kvBytesPerToken": first.kv_bytes_per_token,
            "maxTokens": _least([info.kv_max_tokens for info in infos]),
        }
    )


def _least(values: Sequence[int | None]) -> int | None:
    return min((value for value in values if value is not None), default=None)


def _scaling(report: ScalingReport | None, previous: Object) -> Json:
    """A fresh operator knows nothing of the past: history comes from the status that its predecessor wrote."""
    before: Object = previous.get("scaling") or {}
    if report is None:
        return dict(before)
    steps = {step["time"]: step for step in before.get("history") or ()}
    steps |= {step["time"]: step for step in map(_step, report.history)}
    history = [steps[time] for time in sorted(steps, reverse=True)][:MAX_HISTORY]
    last = None if report.last_decision is None else timestamp(report.last_decision)
    return {
        "desired": report.desired,
        "reason": report.message,
        "lastDecisionTime": last or before.get("lastDecisionTime"),
        "history": history or None,
    }


def _step(step: ScaleStep) -> Json:
    return {
        "time": timestamp(step.time),
        "from": step.from_replicas,
        "to": step.to_replicas,
        "reason": step.reason,
        "winner": step.winner,
        "loadPercent": step.load_percent,
        "formula": step.formula[:MAX_FORMULA],
    }


def _update(key: PoolKey, uid: str, previous: Object, status: Object) -> StatusUpdate:
    patch = merge_patch(previous, status)
    essence = _essence(status)
    significant = bool(patch) and _essence(previous) != essence
    time_alone = patch.keys() == {"scaling"} and (patch["scaling"] or {}).keys() == {"lastDecisionTime"}
    return StatusUpdate(patch, significant, essence, time_alone, tuple(_events(key, uid, previous, status)))


def _essence(status: Object) -> Json:
    """Without the wording and the time of the last reading, which change with every one."""
    conditions = [
        {**condition, "message": None} if condition["type"] == ConditionType.SCALING_ACTIVE else condition
        for condition in status.get("conditions") or ()
    ]
    wording = ("reason", "lastDecisionTime")
    scaling = {name: value for name, value in (status.get("scaling") or {}).items() if name not in wording}
    return {**status, "conditions": conditions, "scaling": scaling}


def merge_patch(before: Object, after: Object) -> Json:
    """The RFC 7386 patch that turns `before` into `after`."""
    patch: Json = {name: None for name in before if name not in after}
    for name, value in after.items():
        old = before.get(name)
        if isinstance(value, Mapping) and isinstance(old, Mapping):
            if inner := merge_patch(old, value):
                patch[name] = inner
        elif value != old:
            patch[name] = value
    return patch


def _events(key: PoolKey, uid: str, previous: Object, status: Object) -> Iterator[PlannedEvent]:
    """One for each condition that changed its status or reason, worded as the condition; equal ones once."""
    told: set[str] = set()
    types = [ConditionType.READY, ConditionType.DEGRADED, ConditionType.ROLLOUT_COMPLETE]
    if _scaling_is_in_trouble(previous, status):
        types.append(ConditionType.SCALING_ACTIVE)
    for type_ in types:
        old = find(previous.get("conditions") or (), type_)
        new = find(status.get("conditions") or (), type_)
        if new is None or new["reason"] in told or (old is None and new["status"] == "False" and type_ != "Ready"):
            continue
        if old is not None and (old.get("status"), old.get("reason")) == (new["status"], new["reason"]):
            continue
        if type_ is ConditionType.DEGRADED and new["status"] == "False":
            continue
        told.add(new["reason"])
        kind: Literal["Normal", "Warning"] = "Normal" if new["reason"] in _CALM else "Warning"
        yield PlannedEvent(key, kind, new["reason"], new["message"], uid)


def _scaling_is_in_trouble(previous: Object, status: Object) -> bool:
    """A pool that starts, or whose last pod ends, has no load to read: that is no news of its own."""
    scaling = find(status.get("conditions") or (), ConditionType.SCALING_ACTIVE) or {}
    if scaling.get("reason") == Reason.NO_LOAD_DATA:
        ready = [find(one.get("conditions") or (), ConditionType.READY) or {} for one in (previous, status)]
        return all(condition.get("status") == "True" for condition in ready)
    return scaling.get("reason") in _SCALING_NEEDS_A_PERSON
