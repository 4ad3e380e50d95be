"""RolloutComplete: whether the last change of the spec has reached every pod, and how far it is. Pure.

Pods are counted by the template that they are of: the Deployment's own counts are those of its last spec until its
controller has looked at the new one.
"""

from typing import Final

from kvik_operator.counted import counted
from kvik_operator.crd.conditions import Condition, find
from kvik_operator.crd.inferencepool import RolloutStrategy
from kvik_operator.names import ConditionType, Reason
from kvik_operator.reconcile.findings import Findings, deployment_condition
from kvik_operator.reconcile.pod_state import Problem
from kvik_operator.reconcile.rollout import ROOM_PATIENCE, in_place_since_no_room, is_observed, never_fits

_TYPE: Final = ConditionType.ROLLOUT_COMPLETE
PAUSED: Final = "the annotation kvik.dev/paused is true: the pool's objects are left as they are until it is removed"
_WITHOUT_SURGE: Final = "no node had room for one pod more, so this roll replaces pods in place, one at a time"
_NEEDS_NO_ROOM: Final = "spec.rollout.strategy InPlace needs no room for one pod more"


def rollout_complete(findings: Findings, problem: Problem | None) -> Condition:
    if findings.observed.pool.paused:
        return Condition(_TYPE, "Unknown", Reason.PAUSED, PAUSED)
    if not findings.applied.problems and _is_complete(findings):
        message = (
            "all pods are of the current specification" if findings.pods or findings.wanted else "there are no pods"
        )
        return Condition(_TYPE, "True", Reason.ROLLOUT_COMPLETE, message)
    in_place = in_place_since_no_room(findings.deployment)
    if problem is not None and not (in_place and problem.reason is Reason.UNSCHEDULABLE):
        return Condition(_TYPE, "False", problem.reason, problem.message + _way_out(findings, problem))
    progressing = deployment_condition(findings.deployment, "Progressing") or {}
    if progressing.get("reason") == "ProgressDeadlineExceeded":
        message = progressing.get("message") or "the Deployment makes no progress"
        return Condition(_TYPE, "False", Reason.PROGRESS_DEADLINE_EXCEEDED, message)
    if in_place:
        return Condition(_TYPE, "False", Reason.SURGE_UNSCHEDULABLE, f"{_WITHOUT_SURGE}: {_how_far(findings)}")
    return Condition(_TYPE, "False", Reason.ROLLING_OUT, _how_far(findings))


def _is_complete(findings: Findings) -> bool:
    """No older pod is left, and the new ones were all ready once: scaling and restarts are no rolls."""
    deployed = findings.deployment
    if deployed is None or findings.older:
        return False
    if not is_observed(deployed):
        # Something was written that made no pod old: replicas, mostly.
        told = find(findings.observed.pool.status.get("conditions") or (), _TYPE) or {}
        return told.get("status") == "True" and (findings.stopped or (findings.reached and bool(findings.pods)))
    status, progressing = deployed.get("status") or {}, deployment_condition(deployed, "Progressing") or {}
    updated, total = status.get("updatedReplicas", 0), status.get("replicas", 0)
    all_ready = total == findings.wanted == status.get("availableReplicas", 0)
    # The Deployment keeps its word after the roll, but gives it as well for a template that came while it had no pods.
    kept_word = findings.reached and progressing.get("reason") == "NewReplicaSetAvailable"
    return bool(updated == total and (all_ready or kept_word))


def _how_far(findings: Findings) -> str:
    if findings.stopped:
        return f"stopping: {counted(len(findings.pods), 'pod')} left"
    new, old = findings.current, len(findings.older)
    new_ready = sum(pod.ready for pod in new)
    if not old:
        return f"{new_ready} of {counted(findings.wanted, 'pod')} ready, and no old one is left"
    of_all = f"{len(new)} of {counted(findings.wanted, 'pod')} {'is' if findings.wanted == 1 else 'are'} new"
    return f"{of_all} ({new_ready} ready), {counted(old, 'old one')} left, {findings.ready} ready in all"


def _way_out(findings: Findings, problem: Problem) -> str:
    """What comes next, where it is the pod more that there is no room for."""
    strategy = findings.observed.pool.spec.rollout.strategy
    if not findings.older or strategy is RolloutStrategy.IN_PLACE:
        return ""
    if problem.reason is Reason.QUOTA_EXCEEDED:
        return f"; {_NEEDS_NO_ROOM}"
    if problem.reason is not Reason.UNSCHEDULABLE:
        return ""
    if never_fits(problem.message):
        return "; no pod is ended for it, since it would not fit even then"
    if strategy is RolloutStrategy.SURGE:
        return f"; this roll waits for room: {_NEEDS_NO_ROOM}"
    return f"; if it stays so for {int(ROOM_PATIENCE.total_seconds())} s, this roll goes on in place"
