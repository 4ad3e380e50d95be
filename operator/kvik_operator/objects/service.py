"""The Service in front of the pods: the pool's endpoint."""

from kvik_operator.names import (
    LABEL_POOL,
    PORT_HTTP,
    PORT_METRICS,
    PORT_NAME_HTTP,
    PORT_NAME_METRICS,
    ChildKind,
    PoolKey,
    child_name,
)
from kvik_operator.objects.metadata import Json, child


def service(key: PoolKey, uid: str) -> Json:
    """Ports are numbers on both sides, so that a client's DNS SRV look-ups and NetworkPolicies see the same ones."""
    spec: Json = {
        "type": "ClusterIP",
        "selector": {LABEL_POOL: key.name},
        "ports": [
            {"name": name, "port": port, "targetPort": port, "protocol": "TCP", "appProtocol": "http"}
            for name, port in ((PORT_NAME_HTTP, PORT_HTTP), (PORT_NAME_METRICS, PORT_METRICS))
        ],
    }
    return child(ChildKind.SERVICE, key, uid, {"spec": spec})


def endpoint(key: PoolKey) -> str:
    """Base URL of the OpenAI API inside the cluster."""
    return f"http://{child_name(ChildKind.SERVICE, key)}.{key.namespace}.svc:{PORT_HTTP}/v1"
