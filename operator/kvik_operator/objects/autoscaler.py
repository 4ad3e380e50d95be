"""The HorizontalPodAutoscaler of a pool whose driver is HPA: it asks for what the operator's formula says, no more.

The formula has waited out the stabilisation window already, so this one only waits long enough to see two replicas of
the operator agree.
"""

from typing import Final

from kvik_operator.names import API_VERSION, KIND, ChildKind, PoolKey
from kvik_operator.objects.metadata import Json, child

DESIRED_REPLICAS: Final = "kvik_desired_replicas"
"""The metric of the operator's own metrics API."""
DOWN_WINDOW_SECONDS: Final = 60


def autoscaler(key: PoolKey, uid: str, least: int, most: int) -> Json:
    """An average value of 1 a pod makes as many pods as the metric says, give or take Kubernetes' tolerance of 10 %."""
    pool = {"apiVersion": API_VERSION, "kind": KIND, "name": key.name}
    metric: Json = {
        "type": "Object",
        "object": {
            "describedObject": pool,
            "metric": {"name": DESIRED_REPLICAS},
            "target": {"type": "AverageValue", "averageValue": "1"},
        },
    }
    spec: Json = {
        "scaleTargetRef": pool,
        "minReplicas": least,
        "maxReplicas": most,
        "metrics": [metric],
        "behavior": behavior(),
    }
    return child(ChildKind.AUTOSCALER, key, uid, {"spec": spec})


def behavior() -> Json:
    """How fast an autoscaler may follow: at once, but for one window on the way down."""
    everything = [{"type": "Percent", "value": 100, "periodSeconds": 15}]
    rules: Json = {"selectPolicy": "Max", "policies": everything}
    return {
        "scaleUp": {"stabilizationWindowSeconds": 0, **rules},
        "scaleDown": {"stabilizationWindowSeconds": DOWN_WINDOW_SECONDS, **rules},
    }
