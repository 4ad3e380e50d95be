"""The children other than the pods: what each says, and what all of them share."""

from datetime import timedelta
from typing import Any

import pytest

from kvik_operator.names import ANNOTATION_MANIFEST_HASH, ChildKind
from kvik_operator.objects.autoscaler import autoscaler
from kvik_operator.objects.deployment import Pace, deployment
from kvik_operator.objects.disruption_budget import disruption_budget
from kvik_operator.objects.network_policy import network_policy
from kvik_operator.objects.scaled_object import scaled_object
from kvik_operator.objects.service import endpoint, service
from kvik_operator.objects.service_account import service_account
from tests.support.pools import KEY, TRIGGER, UID

OPERATOR = {"podSelector": {"matchLabels": {"app": "operator"}}}
TEAM = {"namespaceSelector": {"matchLabels": {"team": "a"}}}
SURGE = Pace(1, 0)
START = timedelta(seconds=90)
CHILDREN: dict[ChildKind, dict[str, Any]] = {
    ChildKind.DEPLOYMENT: deployment(KEY, UID, {"metadata": {}, "spec": {}}, 2, SURGE, START),
    ChildKind.SERVICE: service(KEY, UID),
    ChildKind.SERVICE_ACCOUNT: service_account(KEY, UID, {}),
    ChildKind.POD_DISRUPTION_BUDGET: disruption_budget(KEY, UID),
    ChildKind.NETWORK_POLICY: network_policy(KEY, UID, (), (), OPERATOR, may_leave=True),
    ChildKind.AUTOSCALER: autoscaler(KEY, UID, 1, 4),
    ChildKind.SCALED_OBJECT: scaled_object(KEY, UID, 1, 4, TRIGGER),
}


@pytest.mark.parametrize("kind", ChildKind)
def test_a_child_is_owned_and_labelled_and_never_blocks_the_pools_deletion(kind: ChildKind) -> None:
    child = CHILDREN[kind]
    metadata = child["metadata"]
    assert (child["kind"], child["apiVersion"]) == (kind, kind.api_version)
    assert metadata["namespace"] == "demo"
    assert metadata["name"] == ("chat-engine" if kind is ChildKind.SERVICE_ACCOUNT else "chat")
    assert metadata["labels"]["kvik.dev/pool"] == "chat"
    (owner,) = metadata["ownerReferences"]
    assert (owner["uid"], owner["controller"], owner["blockOwnerDeletion"]) == (UID, True, False)
    assert "finalizers" not in metadata


def test_the_manifest_hash_changes_with_the_manifest() -> None:
    two, three = (deployment(KEY, UID, {}, replicas, SURGE, START) for replicas in (2, 3))
    hashes = [child["metadata"]["annotations"][ANNOTATION_MANIFEST_HASH] for child in (two, three)]
    assert hashes[0] != hashes[1]
    assert two == deployment(KEY, UID, {}, 2, SURGE, START)


def test_a_rollout_with_a_surge_takes_no_ready_pod_before_its_successor_is_ready() -> None:
    spec = CHILDREN[ChildKind.DEPLOYMENT]["spec"]
    assert spec["strategy"] == {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
    assert spec["replicas"] == 2
    assert spec["selector"] == {"matchLabels": {"kvik.dev/pool": "chat"}}


def test_the_deployments_deadline_is_the_start_up_time() -> None:
    assert CHILDREN[ChildKind.DEPLOYMENT]["spec"]["progressDeadlineSeconds"] == 90
    assert deployment(KEY, UID, {}, 1, SURGE, timedelta(milliseconds=1))["spec"]["progressDeadlineSeconds"] == 2


def test_the_service_is_the_endpoint() -> None:
    spec = CHILDREN[ChildKind.SERVICE]["spec"]
    assert spec["selector"] == {"kvik.dev/pool": "chat"}
    assert [(port["name"], port["port"], port["targetPort"]) for port in spec["ports"]] == [
        ("http", 8000, 8000),
        ("metrics", 8001, 8001),
    ]
    assert endpoint(KEY) == "http://chat.demo.svc:8000/v1"


def test_the_service_account_has_no_token_and_the_users_annotations() -> None:
    account = service_account(KEY, UID, {"cloud/role": "r"})
    assert account["automountServiceAccountToken"] is False
    assert account["metadata"]["annotations"]["cloud/role"] == "r"


def test_a_node_drain_takes_one_pod_and_does_not_wait_for_a_broken_one() -> None:
    spec = CHILDREN[ChildKind.POD_DISRUPTION_BUDGET]["spec"]
    assert (spec["maxUnavailable"], spec["unhealthyPodEvictionPolicy"]) == (1, "AlwaysAllow")


def test_by_default_anybody_reaches_the_two_ports_and_nobody_any_other() -> None:
    spec = CHILDREN[ChildKind.NETWORK_POLICY]["spec"]
    assert spec["policyTypes"] == ["Ingress"]
    assert [rule["ports"][0]["port"] for rule in spec["ingress"]] == [8000, 8001]
    assert not any("from" in rule for rule in spec["ingress"])


def test_set_peers_keep_the_operator_on_the_metrics_port() -> None:
    api, metrics = network_policy(KEY, UID, (TEAM,), (TEAM,), OPERATOR, may_leave=True)["spec"]["ingress"]
    assert api["from"] == [TEAM]
    assert metrics["from"] == [TEAM, OPERATOR]


def test_peers_of_the_api_alone_leave_the_metrics_port_open() -> None:
    api, metrics = network_policy(KEY, UID, (TEAM,), (), OPERATOR, may_leave=True)["spec"]["ingress"]
    assert "from" in api
    assert "from" not in metrics


def test_pods_reach_anybody_unless_they_may_not_leave() -> None:
    open_policy, restricted = (
        network_policy(KEY, UID, (), (), OPERATOR, may_leave=may_leave)["spec"] for may_leave in (True, False)
    )
    assert open_policy["policyTypes"] == ["Ingress"]
    assert restricted["policyTypes"] == ["Ingress", "Egress"]
    assert restricted["egress"] == []
    assert restricted["ingress"] == open_policy["ingress"]
