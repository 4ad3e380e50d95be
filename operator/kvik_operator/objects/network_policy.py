"""The NetworkPolicy: who may reach engine pods, and whether they reach anybody. Other ports are closed to everybody."""

from collections.abc import Mapping, Sequence
from typing import Any

from kvik_operator.names import PORT_HTTP, PORT_METRICS, ChildKind, PoolKey
from kvik_operator.objects.metadata import Json, child, selector


def network_policy(
    key: PoolKey,
    uid: str,
    api_from: Sequence[Mapping[str, Any]],
    metrics_from: Sequence[Mapping[str, Any]],
    operator: Mapping[str, Any] | None,
    *,
    may_leave: bool,
) -> Json:
    """Peers as in a NetworkPolicy; an empty list means anybody. `operator` keeps its way to the metrics port always.

    Without `may_leave`, pods answer and begin no connection themselves.
    """
    metrics = [*metrics_from, operator] if metrics_from and operator is not None else metrics_from
    spec: Json = {
        "podSelector": selector(key.name),
        "policyTypes": ["Ingress"],
        "ingress": [_rule(PORT_HTTP, api_from), _rule(PORT_METRICS, metrics)],
    }
    if not may_leave:
        spec |= {"policyTypes": ["Ingress", "Egress"], "egress": []}
    return child(ChildKind.NETWORK_POLICY, key, uid, {"spec": spec})


def _rule(port: int, peers: Sequence[Mapping[str, Any]]) -> Json:
    rule: Json = {"ports": [{"port": port, "protocol": "TCP"}]}
    if peers:
        rule["from"] = [dict(peer) for peer in peers]
    return rule
