"""The pool's five conditions, decided from its pods, its Deployment and what could not be applied. Pure.

Ready means: the endpoint answers, so at least one pod is ready. What else is wrong stands in Degraded and
RolloutComplete, each with a reason that a person can act on.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Final

from kvik_operator.counted import counted
from kvik_operator.crd.conditions import Condition
from kvik_operator.names import ENGINE_REASONS, ConditionType, Reason
from kvik_operator.objects.model_source import place_in_words
from kvik_operator.reconcile.findings import Findings, deployment_condition
from kvik_operator.reconcile.pod_state import Phase, PodState, Problem
from kvik_operator.reconcile.rollout import room_is_coming
from kvik_operator.reconcile.rollout_condition import PAUSED, rollout_complete
from kvik_operator.reconcile.types import EngineInfo, Object, Observed

_BY_URGENCY: Final = (
    *sorted(ENGINE_REASONS),
    Reason.OUT_OF_MEMORY,
    Reason.STARTUP_TIMED_OUT,
    Reason.CRASH_LOOPING,
    Reason.IMAGE_PULL_FAILED,
    Reason.CONTAINER_NOT_CREATED,
    Reason.UNSCHEDULABLE,
    Reason.MOUNT_FAILED,
    Reason.NODE_LOST,
    Reason.PODS_NOT_READY,
)
_ON_THE_WAY: Final = {
    Phase.SCHEDULING: (Reason.STARTING, "waiting for a node"),
    Phase.PREPARING: (Reason.STARTING, "the node prepares volumes and images"),
    Phase.FETCHING: (Reason.MODEL_FETCHING, "fetching the model"),
    Phase.LOADING: (Reason.MODEL_LOADING, "the engine loads the model"),
}
FIXED_REPLICAS: Final = Condition(
    ConditionType.SCALING_ACTIVE, "False", Reason.FIXED_REPLICAS, "spec.scaling is absent: replicas are fixed"
)


def pool_conditions(findings: Findings) -> list[Condition]:
    problem = first_problem(findings)
    return [
        _ready(findings, problem),
        _model_loaded(findings, problem),
        _scaling_active(findings),
        rollout_complete(findings, problem),
        _degraded(findings, problem),
    ]


def first_problem(findings: Findings) -> Problem | None:
    """What to tell first: what could not be applied, then what the newest pods say, then older ones in service."""
    if findings.applied.problems:
        first = findings.applied.problems[0]
        return Problem(first.reason, first.message)
    if findings.stopped:
        return None
    refused = _refused_pods(findings.deployment)
    if refused is not None:
        return refused
    problem = _most_urgent(findings, findings.current) or _most_urgent(findings, _in_service(findings.older))
    return None if problem is None else _as_the_pool_has_it(problem, findings.observed)


def _ready(findings: Findings, problem: Problem | None) -> Condition:
    type_ = ConditionType.READY
    if findings.ready > 0:
        message = f"{findings.ready} of {counted(findings.wanted, 'pod')} ready"
        return Condition(type_, "True", Reason.PODS_READY, message)
    if findings.stopped and (problem is None or not findings.applied.problems):
        return Condition(type_, "False", Reason.STOPPED, "spec.replicas is 0")
    if problem is not None:
        return Condition(type_, "False", problem.reason, problem.message)
    reason, message = _progress(findings)
    return Condition(type_, "False", reason, message)


def _model_loaded(findings: Findings, problem: Problem | None) -> Condition:
    type_ = ConditionType.MODEL_LOADED
    if findings.ready > 0:
        name = findings.observed.effective.model.name
        return Condition(type_, "True", Reason.MODEL_LOADED, f"{name} is loaded in {counted(findings.ready, 'pod')}")
    if findings.stopped:
        return Condition(type_, "False", Reason.STOPPED, "spec.replicas is 0")
    if problem is not None:
        return Condition(type_, "False", problem.reason, problem.message)
    reason, message = _progress(findings)
    return Condition(type_, "False", reason, message)


def _scaling_active(findings: Findings) -> Condition:
    type_ = ConditionType.SCALING_ACTIVE
    if findings.observed.effective.scaling is None:
        return FIXED_REPLICAS
    if findings.stopped:
        return Condition(type_, "False", Reason.STOPPED, "spec.replicas is 0: set it to 1 or more to scale again")
    if findings.observed.pool.paused:
        return Condition(type_, "False", Reason.PAUSED, PAUSED)
    report = findings.scaling
    if report is None:
        return Condition(type_, "False", Reason.OBSERVING_LOAD, "no load has been read yet")
    return Condition(type_, "True" if report.active else "False", report.reason, report.message)


def _degraded(findings: Findings, problem: Problem | None) -> Condition:
    type_ = ConditionType.DEGRADED
    if problem is not None and problem.reason is not Reason.STARTING:
        return Condition(type_, "True", problem.reason, problem.message)
    if findings.outdated_keys:
        return Condition(type_, "True", Reason.API_KEYS_OUTDATED, _keys_outdated(findings))
    if findings.observed.kept:
        return Condition(type_, "True", Reason.FIELDS_DROPPED, _dropped(findings.observed))
    if findings.too_old is not None:
        return Condition(type_, "True", Reason.ENGINE_TOO_OLD, str(findings.too_old))
    differs = _model_differs(findings.infos)
    if differs is not None:
        return Condition(type_, "True", Reason.MODEL_DIFFERS, differs)
    return Condition(type_, "False", Reason.AS_EXPECTED, "nothing is known to be wrong")


def _progress(findings: Findings) -> tuple[Reason, str]:
    """How far the furthest pod is, while nothing is wrong."""
    if not findings.current and findings.observed.pool.paused:
        return Reason.PAUSED, PAUSED
    if not findings.current:
        return Reason.STARTING, "no pod of this specification has been created yet"
    order = list(_ON_THE_WAY)
    furthest = max(findings.current, key=lambda pod: order.index(pod.phase) if pod.phase in order else -1)
    reason, message = _ON_THE_WAY.get(furthest.phase, (Reason.STARTING, "starting"))
    if furthest.phase is Phase.SCHEDULING and room_is_coming(findings.observed):
        message = "waiting for the room of a pod that is ending"
    return reason, f"Pod {furthest.name}: {message}"


def _in_service(older: Sequence[PodState]) -> list[PodState]:
    """Those of revisions that serve: one of which no pod is ready is being left, and why is no trouble any more."""
    serving = {pod.template_hash for pod in older if pod.ready}
    return [pod for pod in older if pod.template_hash in serving]


def _most_urgent(findings: Findings, pods: Sequence[PodState]) -> Problem | None:
    """One problem for all pods: the most urgent kind, of the first pod by name, with how many pods share it."""
    problems = [(pod.name, pod.problem) for pod in pods if pod.problem is not None]
    if room_is_coming(findings.observed):
        problems = [(name, problem) for name, problem in problems if problem.reason is not Reason.UNSCHEDULABLE]
    if not problems:
        return None
    counts = Counter(problem.reason for _, problem in problems)
    reason = min(counts, key=_BY_URGENCY.index)
    _, problem = min((item for item in problems if item[1].reason is reason), key=lambda item: item[0])
    others = counts[reason] - 1
    return Problem(reason, f"{problem.message} (and {counted(others, 'more pod')})") if others else problem


def _as_the_pool_has_it(problem: Problem, observed: Observed) -> Problem:
    """A mount that hangs does not say which, and an engine knows the path that it was given: say what the pool has."""
    model, more = observed.pool.spec.model, ""
    if problem.reason is Reason.MOUNT_FAILED and model.secret_ref is not None:
        more = f"; it needs the Secret {model.secret_ref.name} with a key token"
    if problem.reason is Reason.MODEL_NOT_FOUND:
        more = f"; spec.model.source {place_in_words(model.source)}"
    return Problem(problem.reason, problem.message + more)


def _refused_pods(deployed: Object | None) -> Problem | None:
    """The API server refuses to create the pods: quota, admission, pod security."""
    failure = deployment_condition(deployed, "ReplicaFailure")
    if failure is None or failure.get("status") != "True":
        return None
    message = failure.get("message") or "pods cannot be created"
    reason = Reason.QUOTA_EXCEEDED if "exceeded quota" in message else Reason.PODS_REFUSED
    return Problem(reason, message)


def _keys_outdated(findings: Findings) -> str:
    first, others = findings.outdated_keys[0], len(findings.outdated_keys) - 1
    keys = findings.observed.effective.api_keys
    secret = "the Secret of spec.apiKeys" if keys is None else f"key {keys.key} of the Secret {keys.secret}"
    who = f"Pod {first}" + (f" and {counted(others, 'more pod')}" if others else "")
    return f"{who} cannot use {secret}, so the keys before it stay in force; the pod's log names the line"


def _dropped(observed: Observed) -> str:
    fields = ", ".join(f"spec.{field}" for field in sorted(observed.kept))
    return (
        f"an older CRD has dropped {fields} from the pool; what was set stays in effect: "
        "upgrade the chart kvik-crds, then apply the pool again"
    )


def _model_differs(infos: Sequence[EngineInfo]) -> str | None:
    """A branch or a claim moved between two pods' starts: they answer differently."""
    for what in ("revision", "digest"):
        values = sorted({value for info in infos if (value := getattr(info, what)) is not None})
        if len(values) > 1:
            return f"pods serve different model {what}s: {', '.join(values)}; pin the source and roll the pool"
    return None
