"""How fast pods may be replaced: with one more than wanted, or in place. Pure.

Auto begins every roll with a surge, and carries on in place when no node has room for it. That it does so is kept on
the Deployment itself, with the template that the roll leads to: an operator that starts in the middle goes on alike,
and neither the next roll nor the time after this one is bound by it.
"""

from collections.abc import Iterable
from datetime import timedelta
from typing import Final

from kvik_operator.crd.conditions import parse_timestamp
from kvik_operator.crd.inferencepool import RolloutStrategy
from kvik_operator.names import ANNOTATION_ROLL_IN_PLACE, ChildKind
from kvik_operator.objects.deployment import Pace
from kvik_operator.reconcile.pod_state import hash_label, is_ending, live_pods, pod_condition
from kvik_operator.reconcile.types import Object, Observed

SURGE: Final = Pace(max_surge=1, max_unavailable=0)
IN_PLACE: Final = Pace(max_surge=0, max_unavailable=1)
ROOM_PATIENCE: Final = timedelta(seconds=60)
"""How long Auto waits for a node with room for the surge pod."""
ROOM_SETTLES: Final = timedelta(seconds=15)
"""A scheduler may take so long to use the room that a pod has left: its back-off is 10 s at most."""
_NOT_HELPFUL: Final = "Preemption is not helpful"
_NO_VICTIMS: Final = "No preemption victims found"
"""The scheduler looks at each node for pods of lower priority whose end would help, and says what it has found."""


def pace(strategy: RolloutStrategy, revision_hash: str | None, observed: Observed) -> Pace:
    """`revision_hash` is the template hash of the pods that should be there."""
    match strategy:
        case RolloutStrategy.SURGE:
            return SURGE
        case RolloutStrategy.IN_PLACE:
            return IN_PLACE
        case RolloutStrategy.AUTO:
            deployed = observed.children.get(ChildKind.DEPLOYMENT)
            if deployed is None or revision_hash is None or template_hash(deployed) != revision_hash:
                return SURGE  # the roll begins with this very write
            switched = in_place_since_no_room(deployed) and _under_way(deployed, revision_hash, observed.pods)
            if switched or _surge_has_no_room(revision_hash, observed):
                return Pace(IN_PLACE.max_surge, IN_PLACE.max_unavailable, switched_for=revision_hash)
            return SURGE


def template_hash(deployed: Object | None) -> str | None:
    """Of the pods that the Deployment makes now; None: there is no Deployment, or it has no template of ours."""
    return hash_label(((deployed or {}).get("spec") or {}).get("template") or {})


def room_is_coming(observed: Observed) -> bool:
    """A pod of this pool is about to end, or has just done so."""
    ending = any(is_ending(pod, observed.now) for pod in observed.pods)
    return ending or (observed.room_made is not None and observed.now - observed.room_made < ROOM_SETTLES)


def in_place_since_no_room(deployed: Object | None) -> bool:
    """Whether the roll to the Deployment's present template began with a surge and had to go on without."""
    annotations = ((deployed or {}).get("metadata") or {}).get("annotations") or {}
    noted = annotations.get(ANNOTATION_ROLL_IN_PLACE)
    return noted is not None and noted == template_hash(deployed)


def never_fits(message: str) -> bool:
    """Whether the scheduler rules out, for every node, that the end of another pod would make room for this one."""
    return _NOT_HELPFUL in message and _NO_VICTIMS not in message


def of_others(revision_hash: str | None, pods: Iterable[Object]) -> list[Object]:
    """Those of another template."""
    return [pod for pod in pods if hash_label(pod) != revision_hash]


def is_observed(deployed: Object) -> bool:
    """Whether the Deployment's status speaks of its present spec."""
    status = deployed.get("status") or {}
    return int(status.get("observedGeneration", 0)) >= int(deployed["metadata"].get("generation", 1))


def _under_way(deployed: Object, revision_hash: str, pods: Iterable[Object]) -> bool:
    """Pods of an older template are left, or the last of the new ones waits for the room of one that drains; or the
    Deployment may not have said yet that neither is so.
    """
    status = deployed.get("status") or {}
    counts = {status.get(name, 0) for name in ("replicas", "updatedReplicas", "availableReplicas")}
    return bool(of_others(revision_hash, live_pods(tuple(pods)))) or not is_observed(deployed) or len(counts) > 1


def _surge_has_no_room(revision_hash: str, observed: Observed) -> bool:
    """A new pod has found no node for a while, an old one holds what it may need, and no pod is about to free any."""
    live = live_pods(observed.pods)
    if not of_others(revision_hash, live) or room_is_coming(observed):
        return False
    return any(_has_no_room(pod, observed) for pod in live if hash_label(pod) == revision_hash)


def _has_no_room(pod: Object, observed: Observed) -> bool:
    """The scheduler has said so long enough, and does not rule out that the end of another pod would help."""
    scheduled = pod_condition(pod, "PodScheduled") or {}
    since, message = scheduled.get("lastTransitionTime"), scheduled.get("message") or ""
    if scheduled.get("status") != "False" or scheduled.get("reason") != "Unschedulable" or not since:
        return False
    return not never_fits(message) and observed.now - parse_timestamp(since) >= ROOM_PATIENCE
