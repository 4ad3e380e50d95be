"""The whole flow over an API server in memory: what is written, when, and what is left alone."""

from datetime import timedelta
from typing import Any

import pytest

from kvik_operator.errors import ClusterError, Conflict, NotFound, Refused, Unavailable
from kvik_operator.names import LABEL_POOL, ChildKind, Reason
from kvik_operator.reconcile.reconcile import LOOK_AGAIN_SOON, RESYNC, WATCH_CLOSELY
from kvik_operator.reconcile.types import (
    EngineImages,
    NetworkPolicyOptions,
    ReconcileOptions,
    ScalingReport,
)
from tests.support.pools import UID, make_pod, make_pool, terminating, with_every_child
from tests.support.reconciled_pool import Operator, refused

EVERY_CHILD = [
    "apply ControllerRevision",
    "apply ServiceAccount",
    "apply NetworkPolicy",
    "apply Service",
    "apply PodDisruptionBudget",
    "apply Deployment",
]


async def test_a_new_pool_gets_all_its_children_and_a_status() -> None:
    operator = Operator()
    assert await operator.look() == WATCH_CLOSELY
    assert operator.cluster.writes() == [*EVERY_CHILD, "patch_status"]
    assert operator.cluster.condition("Ready")["reason"] == "Starting"


async def test_a_second_look_writes_nothing() -> None:
    operator = Operator()
    await operator.settle()
    for _ in range(20):
        assert await operator.look(after=60) == RESYNC
    assert operator.cluster.writes() == []


async def test_a_child_that_somebody_changed_is_put_right() -> None:
    """LLMKube #484: two writers of replicas made 41 flaps in 14 minutes; here one of them is us, and it is level."""
    operator = Operator()
    await operator.settle()
    operator.cluster.children[ChildKind.DEPLOYMENT]["spec"]["replicas"] = 7
    await operator.look()
    assert operator.cluster.writes()[0] == "apply Deployment"
    assert operator.replicas() == 1


async def test_a_child_that_somebody_deleted_comes_back() -> None:
    operator = Operator()
    await operator.settle()
    del operator.cluster.children[ChildKind.SERVICE]
    await operator.look()
    assert operator.cluster.writes() == ["apply Service"]


async def test_a_webhook_that_rewrites_a_child_is_not_fought() -> None:
    """An image mirror's webhook changes the image on each write: drift for ever, if one writes against it."""
    operator = Operator()

    def mirror(child: dict[str, Any]) -> None:
        if child["kind"] == "Deployment":
            child["spec"]["template"]["spec"]["containers"][0]["image"] = "mirror/engine:1"

    operator.cluster.webhook = mirror
    await operator.settle()
    for _ in range(10):
        await operator.look(after=10)
    assert operator.cluster.writes() == []
    operator.spec["replicas"] = 2
    await operator.look()
    assert operator.cluster.writes()[0] == "apply Deployment"
    operator.cluster.children[ChildKind.DEPLOYMENT]["spec"]["replicas"] = 5
    operator.cluster.children[ChildKind.DEPLOYMENT]["metadata"]["generation"] += 1
    await operator.look()
    assert operator.replicas() == 2


async def test_replicas_from_the_scale_subresource_reach_the_deployment_and_stay() -> None:
    """LLMKube #484: the operator wrote its own number over the autoscaler's at each look."""
    operator = Operator()
    await operator.settle()
    operator.spec["replicas"] = 3
    await operator.look()
    assert operator.replicas() == 3
    for _ in range(20):
        await operator.look(after=5)
    assert operator.replicas() == 3


async def test_scaling_does_not_roll_the_pods() -> None:
    operator = Operator(scaling={"maxReplicas": 5})
    await operator.settle()
    before = operator.cluster.children[ChildKind.DEPLOYMENT]["spec"]["template"]
    operator.spec["replicas"] = 4
    operator.spec["scaling"]["targetLoadPercent"] = 50
    await operator.look()
    assert operator.replicas() == 4
    assert operator.cluster.children[ChildKind.DEPLOYMENT]["spec"]["template"] == before


async def test_the_idle_pod_is_marked_before_the_deployment_shrinks() -> None:
    operator = Operator(replicas=2)
    await operator.settle(pods=2)
    operator.cluster.in_flight = {"uid-chat-0": 3, "uid-chat-1": 0}
    operator.spec["replicas"] = 1
    await operator.look()
    assert operator.cluster.writes()[:2] == ["annotate_pod", "apply Deployment"]
    assert operator.cluster.engine_pods[1]["metadata"]["annotations"] == {
        "controller.kubernetes.io/pod-deletion-cost": "-100"
    }


async def test_a_pod_that_cannot_be_marked_does_not_keep_the_pool_from_shrinking() -> None:
    operator = Operator(replicas=2)
    await operator.settle(pods=2)
    operator.cluster.failures["annotate_pod"] = NotFound("annotate", 404, "NotFound", "gone")
    operator.spec["replicas"] = 1
    await operator.look()
    assert operator.replicas() == 1


@pytest.mark.parametrize(
    "fresh",
    [None, make_pool(generation=2, replicas=2), {**terminating(make_pool(replicas=1))}],
    ids=["gone", "changed", "going"],
)
async def test_nothing_is_taken_away_on_the_word_of_a_stale_cache(fresh: Any) -> None:
    operator = Operator(replicas=2)
    await operator.settle(pods=2)
    operator.spec["replicas"] = 1
    operator.cluster.fresh_pool = fresh
    assert await operator.look() == LOOK_AGAIN_SOON
    assert operator.cluster.writes() == []
    assert operator.replicas() == 2


async def test_a_deleted_pool_is_left_to_the_garbage_collector() -> None:
    operator = Operator()
    await operator.settle()
    operator.cluster.stored_pool = terminating(operator.cluster.stored_pool or {})
    assert await operator.look() is None
    operator.cluster.stored_pool = None
    assert await operator.look() is None
    assert operator.cluster.writes() == []


@pytest.mark.parametrize("kind", ChildKind)
async def test_somebody_elses_object_is_never_touched_and_named(kind: ChildKind) -> None:
    operator = Operator(**with_every_child(kind))
    operator.cluster.unseen[kind] = {"metadata": {"name": "chat", "labels": {}}}
    assert await operator.look() == WATCH_CLOSELY
    assert f"apply {kind}" not in operator.cluster.writes()
    ready = operator.cluster.condition("Ready")
    assert (ready["status"], ready["reason"]) == ("False", "ForeignObject")
    assert str(kind) in ready["message"]
    del operator.cluster.unseen[kind]
    await operator.look(after=10)
    assert operator.cluster.condition("Ready")["reason"] == "Starting"


async def test_an_object_that_carries_our_label_and_has_no_owner_is_adopted() -> None:
    operator = Operator()
    operator.cluster.unseen[ChildKind.SERVICE] = {"metadata": {"name": "chat", "labels": {LABEL_POOL: "chat"}}}
    await operator.look()
    owners = operator.cluster.children[ChildKind.SERVICE]["metadata"]["ownerReferences"]
    assert owners[0]["uid"] == UID


async def test_a_pool_made_again_waits_until_the_old_children_are_gone() -> None:
    operator = Operator()
    await operator.settle()
    assert operator.cluster.stored_pool is not None
    operator.cluster.stored_pool["metadata"]["uid"] = "22222222-2222-2222-2222-222222222222"
    assert await operator.look() == LOOK_AGAIN_SOON
    assert operator.cluster.writes() == ["patch_status"]
    assert "waiting until the old" in operator.cluster.condition("RolloutComplete")["message"]
    assert operator.cluster.condition("Degraded")["status"] == "False"
    operator.cluster.children.clear()
    operator.cluster.revisions.clear()
    await operator.look()
    owners = operator.cluster.children[ChildKind.DEPLOYMENT]["metadata"]["ownerReferences"]
    assert owners[0]["uid"].startswith("2222")


@pytest.mark.parametrize(
    ("message", "want"),
    [
        ('User "x" cannot patch resource "deployments" in API group "apps"', "AccessDenied"),
        ('deployments.apps "chat" is forbidden: exceeded quota: objects', "QuotaExceeded"),
        ("admission webhook denied the request", "ApplyRefused"),
    ],
)
async def test_a_refusal_is_told_and_clears_once_it_is_lifted(message: str, want: str) -> None:
    operator = Operator()
    operator.cluster.failures["apply Deployment"] = refused(message)
    assert await operator.look() == WATCH_CLOSELY
    ready = operator.cluster.condition("Ready")
    assert (ready["status"], ready["reason"]) == ("False", want)
    assert message in ready["message"]
    assert ChildKind.SERVICE in operator.cluster.children
    operator.cluster.failures.clear()
    await operator.look(after=10)
    assert operator.cluster.condition("Ready")["reason"] == "Starting"


@pytest.mark.parametrize("first", [0, 1])
async def test_a_namespace_that_is_going_stops_the_work(first: int) -> None:
    operator = Operator()
    message = "unable to create new content in namespace demo because it is being terminated"
    operator.cluster.failures[EVERY_CHILD[first]] = refused(message)
    assert await operator.look() is None
    assert operator.cluster.writes() == EVERY_CHILD[: first + 1]


async def test_a_namespace_that_is_gone_ends_the_work() -> None:
    operator = Operator()
    gone = NotFound("apply", 404, "NotFound", 'namespaces "demo" not found')
    operator.cluster.failures = {"apply ServiceAccount": gone, "patch_status": gone}
    assert await operator.look() is None


async def test_an_api_that_is_not_served_is_told() -> None:
    operator = Operator()
    operator.cluster.failures["apply NetworkPolicy"] = NotFound(
        "apply", 404, "NotFound", "the server could not find it"
    )
    assert await operator.look() == WATCH_CLOSELY
    assert operator.cluster.condition("Ready")["reason"] == "ApplyRefused"


@pytest.mark.parametrize(
    "failure",
    [
        Unavailable("apply", None, "Timeout", "no answer"),
        Unavailable("apply", 429, "TooManyRequests", "slow down", delay=1),
        Unavailable("apply", 503, "ServiceUnavailable", "the server is starting"),
        Conflict("apply", 409, "Conflict", "try again"),
    ],
)
async def test_a_call_that_may_work_later_is_left_to_the_queue(failure: ClusterError) -> None:
    operator = Operator()
    operator.cluster.failures["apply Service"] = failure
    with pytest.raises(type(failure)):
        await operator.look()


async def test_a_call_that_may_work_later_keeps_no_other_child_waiting() -> None:
    """Under a storm of errors each pass must get further, or the back-off grows faster than the pool."""
    operator = Operator(**with_every_child())
    operator.cluster.failures["apply ServiceAccount"] = Unavailable("apply", 429, "TooManyRequests", "slow down")
    with pytest.raises(Unavailable):
        await operator.look()
    assert set(operator.cluster.children) == set(ChildKind) - {ChildKind.SERVICE_ACCOUNT, ChildKind.SCALED_OBJECT}


async def test_a_webhook_that_fails_is_told_in_the_status() -> None:
    operator = Operator()
    operator.cluster.failures["apply Service"] = Unavailable("apply", 500, "InternalError", "failed calling webhook")
    await operator.look()
    assert operator.cluster.condition("Ready")["reason"] == Reason.APPLY_REFUSED


async def test_a_webhook_on_pods_that_fails_keeps_nothing_else_from_being_written() -> None:
    operator = Operator(replicas=2)
    await operator.settle()
    operator.cluster.engine_pods = [make_pod("a", ready=True), make_pod("b", ready=True)]
    operator.cluster.failures["annotate_pod"] = Unavailable("annotate", 500, "InternalError", "failed calling webhook")
    operator.spec["replicas"] = 1
    await operator.look()
    assert "apply Deployment" in operator.cluster.writes()


async def test_a_spec_that_cannot_be_read_leaves_running_pods_alone() -> None:
    operator = Operator()
    await operator.settle()
    operator.spec["slo"] = {"ttft": "soon"}
    await operator.look()
    assert operator.cluster.writes() == ["patch_status"]
    assert operator.cluster.condition("Degraded")["reason"] == "InvalidSpec"
    assert operator.cluster.condition("Ready")["status"] == "True", "its pods still answer"
    operator.cluster.engine_pods = []
    await operator.look()
    assert operator.cluster.condition("Ready")["reason"] == "InvalidSpec"


async def test_a_pool_made_anew_under_its_name_does_not_inherit_how_the_old_one_was_scaled() -> None:
    operator = Operator(scaling={"maxReplicas": 4})
    operator.cluster.report = ScalingReport(True, Reason.SCALING_ON_LOAD, "90 %", 4, None)
    await operator.settle()
    assert operator.cluster.status["scaling"]["desired"] == 4
    operator.cluster.stored_pool = make_pool(scaling={"maxReplicas": 4})
    operator.cluster.stored_pool["metadata"]["uid"] = "22222222-2222-2222-2222-222222222222"
    await operator.look()
    assert "desired" not in operator.cluster.status.get("scaling", {})
    assert operator.cluster.condition("ScalingActive")["reason"] == "ObservingLoad"


async def test_wording_is_written_once_a_minute_and_a_decision_at_once() -> None:
    operator = Operator(scaling={"maxReplicas": 4})

    def say(text: str, desired: int = 1) -> None:
        operator.cluster.report = ScalingReport(True, Reason.SCALING_ON_LOAD, text, desired, None)

    say("10 %")
    await operator.settle()
    say("11 %")
    await operator.look(after=5)
    assert operator.cluster.writes() == []
    await operator.look(after=60)
    assert operator.cluster.writes() == ["patch_status"]
    say("90 %", desired=2)
    await operator.look(after=1)
    assert operator.cluster.writes() == ["patch_status"]


async def test_that_the_same_was_decided_again_is_written_once_in_five_minutes() -> None:
    operator = Operator(scaling={"maxReplicas": 4})

    def decide(text: str = "0 %") -> None:
        operator.cluster.report = ScalingReport(True, Reason.SCALING_ON_LOAD, text, 1, operator.time)

    decide()
    await operator.settle()
    written = operator.cluster.status["scaling"]["lastDecisionTime"]
    for _ in range(4):
        operator.time += timedelta(seconds=60)
        decide()
        await operator.look()
    assert (operator.cluster.writes(), operator.cluster.status["scaling"]["lastDecisionTime"]) == ([], written)
    operator.time += timedelta(seconds=60)
    decide()
    await operator.look()
    assert operator.cluster.writes() == ["patch_status"]
    assert operator.cluster.status["scaling"]["lastDecisionTime"] != written
    operator.time += timedelta(seconds=60)
    decide("1 %")
    await operator.look()
    assert operator.cluster.writes() == ["patch_status"]


async def test_events_come_after_the_status_and_not_without_it() -> None:
    operator = Operator()
    operator.cluster.failures["patch_status"] = Conflict("patch status", 409, "Conflict", "changed")
    with pytest.raises(Conflict):
        await operator.look()
    assert operator.cluster.events == []
    operator.cluster.failures.clear()
    await operator.look()
    assert [event.reason for event in operator.cluster.events] == ["Starting"]
    assert operator.cluster.events[0].pool_uid == UID


async def test_a_pool_deleted_while_its_status_is_written_is_forgotten() -> None:
    """Its DELETED event may never come; children that are collected would be made again and again until the relist."""
    operator = Operator()
    gone = NotFound("patch status", 404, "NotFound", 'inferencepools.kvik.dev "chat" not found')
    operator.cluster.failures["patch_status"] = gone
    assert await operator.look() is None
    operator.cluster.writes()
    operator.cluster.children.clear()
    assert await operator.look() is None
    assert operator.cluster.writes() == []


async def test_an_api_that_is_not_served_for_a_moment_is_no_deleted_pool() -> None:
    operator = Operator()
    unserved = NotFound("patch status", 404, "NotFound", "the server could not find the requested resource")
    operator.cluster.failures["patch_status"] = unserved
    with pytest.raises(NotFound):
        await operator.look()
    operator.cluster.writes()
    operator.cluster.failures.clear()
    await operator.look()
    assert operator.cluster.writes() == ["patch_status"]


@pytest.mark.parametrize("missing", [*ChildKind])
async def test_a_deleted_pool_whose_event_was_missed_is_not_built_again(missing: ChildKind) -> None:
    """Each child that is collected is an event, and looks like one that somebody deleted."""
    operator = Operator(**with_every_child(missing))
    await operator.settle()
    operator.cluster.fresh_pool = None
    del operator.cluster.children[missing]
    assert await operator.look() == LOOK_AGAIN_SOON
    assert await operator.look() is None
    assert operator.cluster.writes() == []


@pytest.mark.parametrize("stripped", [*ChildKind])
@pytest.mark.parametrize("fresh", [None, terminating(make_pool())], ids=["gone", "going"])
async def test_a_child_that_was_orphaned_gets_no_owner_that_goes(fresh: Any, stripped: ChildKind) -> None:
    """Else the garbage collector takes it, and the pods with it. The child's watch may be ahead of the pool's."""
    operator = Operator(**with_every_child(stripped))
    await operator.settle()
    operator.cluster.fresh_pool = fresh
    del operator.cluster.children[stripped]["metadata"]["ownerReferences"]
    assert await operator.look() == LOOK_AGAIN_SOON
    assert operator.cluster.writes() == []


async def test_a_child_that_lost_its_owner_by_hand_gets_it_back() -> None:
    operator = Operator()
    await operator.settle()
    del operator.cluster.children[ChildKind.DEPLOYMENT]["metadata"]["ownerReferences"]
    await operator.look()
    assert operator.cluster.writes() == ["apply Deployment"]


async def test_switching_network_policies_off_removes_ours_and_leaves_others() -> None:
    operator = Operator()
    await operator.settle()
    off = ReconcileOptions(
        images=EngineImages(gpu="kvik/engine:1", cpu="kvik/engine:1-cpu"),
        network_policy=NetworkPolicyOptions(enabled=False),
    )
    operator.restart(off)
    await operator.look()
    assert operator.cluster.writes() == ["delete NetworkPolicy"]
    operator.cluster.children[ChildKind.NETWORK_POLICY] = {"metadata": {"name": "chat", "uid": "theirs"}}
    await operator.look()
    assert ChildKind.NETWORK_POLICY in operator.cluster.children


async def test_a_child_that_may_not_be_deleted_is_told() -> None:
    operator = Operator()
    await operator.settle()
    off = NetworkPolicyOptions(enabled=False)
    operator.restart(ReconcileOptions(images=EngineImages(gpu="e:1", cpu="e:1-cpu"), network_policy=off))
    message = 'User "operator" cannot delete resource "networkpolicies"'
    operator.cluster.failures["delete NetworkPolicy"] = Refused("delete", 403, "Forbidden", message)
    assert await operator.look() == WATCH_CLOSELY
    assert operator.cluster.condition("Degraded")["reason"] == "AccessDenied"
