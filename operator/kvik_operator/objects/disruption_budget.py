"""The PodDisruptionBudget: a node drain takes one pod at a time, and never waits for one that is not healthy."""

from kvik_operator.names import ChildKind, PoolKey
from kvik_operator.objects.metadata import Json, child, selector


def disruption_budget(key: PoolKey, uid: str) -> Json:
    spec: Json = {
        "maxUnavailable": 1,
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
        "selector": selector(key.name),
    }
    return child(ChildKind.POD_DISRUPTION_BUDGET, key, uid, {"spec": spec})
