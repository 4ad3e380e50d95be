"""A pool with kvik.dev/paused: nothing of it is written but its status, and it goes on when the pause ends."""

import pytest

from kvik_operator.names import ANNOTATION_PAUSED, ChildKind
from kvik_operator.reconcile.reconcile import LOOK_AGAIN_SOON, RESYNC
from kvik_operator.reconcile.rollout import template_hash
from tests.support.pools import make_pod
from tests.support.reconciled_pool import Operator


def annotate(operator: Operator, value: str | None) -> None:
    assert operator.cluster.stored_pool is not None
    annotations = {} if value is None else {ANNOTATION_PAUSED: value}
    operator.cluster.stored_pool["metadata"]["annotations"] = annotations


async def test_nothing_but_status_is_written_until_the_pause_ends() -> None:
    operator = Operator(replicas=2, scaling={"maxReplicas": 4})
    await operator.settle(pods=2)
    annotate(operator, "true")
    operator.change(replicas=3, batching={"maxRequests": 8})
    operator.cluster.children[ChildKind.DEPLOYMENT]["spec"]["replicas"] = 1
    del operator.cluster.children[ChildKind.SERVICE]
    for _ in range(5):
        assert await operator.look(after=60) == RESYNC
    assert set(operator.cluster.writes()) == {"patch_status"}
    assert operator.cluster.condition("Ready")["status"] == "True"
    assert operator.cluster.condition("Degraded")["status"] == "False"
    for type_, status in (("RolloutComplete", "Unknown"), ("ScalingActive", "False")):
        told = operator.cluster.condition(type_)
        assert (told["status"], told["reason"]) == (status, "Paused")
        assert "kvik.dev/paused" in told["message"]
    annotate(operator, None)
    await operator.look()
    assert {"apply ControllerRevision", "apply Service", "apply Deployment"} <= set(operator.cluster.writes())
    assert operator.replicas() == 3
    assert operator.cluster.condition("RolloutComplete")["reason"] == "RollingOut"


async def test_a_pool_that_begins_paused_has_nothing_and_says_why() -> None:
    operator = Operator()
    annotate(operator, "true")
    await operator.look()
    assert operator.cluster.writes() == ["patch_status"]
    assert operator.cluster.condition("Ready")["reason"] == "Paused"
    annotate(operator, None)
    await operator.look()
    assert "apply Deployment" in operator.cluster.writes()


async def test_a_change_made_during_a_pause_is_carried_out_by_an_operator_that_starts_after_it() -> None:
    """Status speaks of the new generation by then, but the Deployment never got it."""
    operator = Operator()
    await operator.settle()
    before = operator.cluster.children[ChildKind.DEPLOYMENT]["spec"]["template"]
    annotate(operator, "true")
    operator.change(batching={"maxRequests": 8})
    await operator.look()
    annotate(operator, None)
    operator.restart()
    await operator.look()
    assert operator.cluster.children[ChildKind.DEPLOYMENT]["spec"]["template"] != before


async def test_pods_that_fail_during_a_pause_are_told() -> None:
    operator = Operator()
    await operator.settle()
    annotate(operator, "true")
    crash = {"state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}}
    own = template_hash(operator.cluster.children[ChildKind.DEPLOYMENT])
    assert own is not None
    operator.cluster.engine_pods = [make_pod("chat-0", engine=crash, template_hash=own)]
    await operator.look()
    assert operator.cluster.condition("Degraded")["reason"] == "ImagePullFailed"
    assert operator.cluster.condition("RolloutComplete")["reason"] == "Paused"


async def test_a_pause_that_the_watch_has_not_brought_yet_stops_a_scale_down() -> None:
    operator = Operator(replicas=2)
    await operator.settle(pods=2)
    operator.spec["replicas"] = 1
    assert operator.cluster.stored_pool is not None
    pool = operator.cluster.stored_pool
    operator.cluster.fresh_pool = {**pool, "metadata": {**pool["metadata"], "annotations": {ANNOTATION_PAUSED: "true"}}}
    assert await operator.look() == LOOK_AGAIN_SOON
    assert operator.replicas() == 2


@pytest.mark.parametrize("value", ["false", "True", "", "1", "yes"])
async def test_only_true_pauses(value: str) -> None:
    operator = Operator()
    annotate(operator, value)
    await operator.look()
    assert "apply Deployment" in operator.cluster.writes()
