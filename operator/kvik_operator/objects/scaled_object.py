"""The ScaledObject of a pool whose driver is KEDA: it asks the operator's external scaler for what the formula says.

KEDA makes a HorizontalPodAutoscaler of it, so it has the windows of the one that driver HPA makes itself.
"""

from dataclasses import dataclass
from typing import Final

from kvik_operator.names import API_VERSION, KIND, ChildKind, PoolKey
from kvik_operator.objects.autoscaler import behavior
from kvik_operator.objects.metadata import Json, child

POLLING_SECONDS: Final = 30
"""How often KEDA asks besides its autoscaler, which asks every 15 s; it then reports on the ScaledObject."""


@dataclass(frozen=True, slots=True)
class KedaTrigger:
    """`address`: host and port of the operator's scaler. `authentication`: the ClusterTriggerAuthentication for it."""

    address: str
    authentication: str


def scaled_object(key: PoolKey, uid: str, least: int, most: int, trigger: KedaTrigger) -> Json:
    """The scaler gives the metric and its target, 1 a pod. A pool keeps at least one, so nothing ever cools down."""
    spec: Json = {
        "scaleTargetRef": {"apiVersion": API_VERSION, "kind": KIND, "name": key.name},
        "minReplicaCount": least,
        "maxReplicaCount": most,
        "pollingInterval": POLLING_SECONDS,
        "advanced": {
            "restoreToOriginalReplicaCount": False,
            "horizontalPodAutoscalerConfig": {"behavior": behavior()},
        },
        "triggers": [
            {
                "type": "external-push",
                "metadata": {"scalerAddress": trigger.address},
                "authenticationRef": {"name": trigger.authentication, "kind": "ClusterTriggerAuthentication"},
            }
        ],
    }
    return child(ChildKind.SCALED_OBJECT, key, uid, {"spec": spec})
