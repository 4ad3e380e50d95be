"""Which pods a shrinking Deployment should delete: those with the least work in flight. Pure.

The ReplicaSet controller deletes unready pods first and then those of the lowest pod-deletion-cost (absent = 0).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from kvik_operator.names import ANNOTATION_POD_DELETION_COST
from kvik_operator.reconcile.pod_state import is_ready, live_pods
from kvik_operator.reconcile.types import Object

VICTIM_COST: Final = "-100"


def deletion_costs(
    pods: Sequence[Object], deployed: int, wanted: int, work: Callable[[str], int | None]
) -> Mapping[str, str | None]:
    """Pod name to its new pod-deletion-cost (None: remove it); only pods whose annotation must change.

    `deployed` are the Deployment's replicas now, `wanted` those it will have. `work` gives requests in flight by pod
    uid; a ready pod that says nothing may be the busiest and is spared. Pods marked at an earlier shrink lose the mark.
    """
    live = live_pods(pods)
    excess = min(deployed, len(live)) - wanted
    if excess <= 0 or wanted == 0:
        return {}
    ranked = sorted(live, key=lambda pod: _rank(pod, work))
    victims = {pod["metadata"]["name"] for pod in ranked[:excess]}
    changes: dict[str, str | None] = {}
    for pod in ranked:
        name = pod["metadata"]["name"]
        has = (pod["metadata"].get("annotations") or {}).get(ANNOTATION_POD_DELETION_COST)
        wants = VICTIM_COST if name in victims else None
        if has != wants and (wants is not None or has == VICTIM_COST):
            changes[name] = wants
    return changes


def _rank(pod: Object, work: Callable[[str], int | None]) -> tuple[bool, float, str]:
    in_flight = work(pod["metadata"].get("uid", ""))
    return is_ready(pod), float("inf") if in_flight is None else in_flight, pod["metadata"]["name"]
