"""A node that goes silent, with the node controller of a real control plane: its pool says so, and moves on."""

import json
import time
from collections.abc import Mapping
from typing import Any

import pytest

from tests.support.kubectl import condition, wait_for
from tests.support.operator_rig import Rig, eventually

pytestmark = [pytest.mark.timeout(600), pytest.mark.long]

GOES, STAYS = "node-that-goes", "node-that-stays"
"""With all its nodes silent, a cluster suspects itself, and keeps every pod where it is."""
SILENT_AFTER = 120
"""Kubernetes gives a node 50 s to say that it is there."""
REPLACED_AFTER = 120


def say_ready(rig: Rig, node: str) -> bool:
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "for now"}
    status = {"status": {"conditions": [{**ready, "lastHeartbeatTime": now, "lastTransitionTime": now}]}}
    rig.kubectl("patch", "node", node, "--subresource=status", "--type=merge", f"--patch={json.dumps(status)}")
    return True


def join(rig: Rig, node: str) -> None:
    rig.kubectl("create", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}}))
    say_ready(rig, node)


def bind(rig: Rig, pod: str) -> None:
    path = f"/api/v1/namespaces/{rig.namespace}/pods/{pod}/binding"
    target = {"apiVersion": "v1", "kind": "Node", "name": GOES}
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod}, "target": target}
    rig.kubectl("create", f"--raw={path}", "-f", "-", stdin=json.dumps(binding))


def test_a_pool_names_the_node_that_is_lost_and_gets_another_pod(operated: Rig) -> None:
    rig = operated
    rig.operator()
    rig.kubelet.starts = lambda pod: bool(pod["spec"].get("nodeName"))
    rig.create()
    (pod,) = eventually("a pod", lambda: rig.pods() or None, 30, rig.explain)
    for node in (GOES, STAYS):
        join(rig, node)
    try:
        bind(rig, pod["metadata"]["name"])
        rig.wait_ready()

        def told() -> bool:
            ready = condition(rig.pool(), "Ready") or {}
            return say_ready(rig, STAYS) and ready.get("reason") == "NodeLost" and GOES in ready["message"]

        wait_for("the lost node to be named", told, SILENT_AFTER, rig.explain, every=3)
        rig.kubelet.starts = lambda _: True

        def replaced() -> bool:
            return say_ready(rig, STAYS) and others(rig, pod)

        wait_for("another pod", replaced, REPLACED_AFTER, rig.explain, every=3)
        rig.wait_ready(seconds=60)
        assert (condition(rig.pool(), "Degraded") or {})["status"] == "False"
    finally:
        rig.kubectl("delete", "node", GOES, STAYS)


def others(rig: Rig, than: Mapping[str, Any]) -> bool:
    return bool({pod["metadata"]["uid"] for pod in rig.pods()} - {than["metadata"]["uid"]})
