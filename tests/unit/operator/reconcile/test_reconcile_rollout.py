"""The whole flow over an API server in memory: a roll that finds no room, looked at by one operator after another."""

from copy import deepcopy
from typing import Any

import pytest

from kvik_operator.errors import Refused, Unavailable
from kvik_operator.names import ANNOTATION_ROLL_IN_PLACE, ChildKind
from kvik_operator.reconcile.rollout import template_hash
from tests.support.pools import make_pod, terminating, unschedulable
from tests.support.reconciled_pool import Operator

FULL = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."


async def rolling(waited: float, **spec: Any) -> Operator:
    """Two pods are ready, and that of the next revision has found no node for so many seconds."""
    operator = Operator(replicas=2, **spec)
    await operator.settle(2)
    operator.change(batching={"maxRequests": 8})
    await operator.look()
    deployed = operator.cluster.children[ChildKind.DEPLOYMENT]
    own = template_hash(deployed)
    assert own is not None
    operator.cluster.engine_pods.append(unschedulable("chat-2", FULL, waited, template_hash=own))
    deployed["status"] |= {
        "observedGeneration": deployed["metadata"]["generation"],
        "replicas": 3,
        "updatedReplicas": 1,
    }
    operator.cluster.writes()
    return operator


def pace(operator: Operator) -> tuple[int, int]:
    rolling = operator.cluster.children[ChildKind.DEPLOYMENT]["spec"]["strategy"]["rollingUpdate"]
    return rolling["maxSurge"], rolling["maxUnavailable"]


def degraded(operator: Operator) -> str:
    status: str = operator.cluster.condition("Degraded")["status"]
    return status


async def test_a_roll_without_room_goes_on_in_place_and_tells_it_once() -> None:
    operator = await rolling(waited=55)
    assert pace(operator) == (1, 0)
    await operator.look()
    assert pace(operator) == (1, 0)
    assert "goes on in place" in operator.cluster.condition("RolloutComplete")["message"]
    before = deepcopy(operator.cluster.children[ChildKind.DEPLOYMENT])
    await operator.look(after=10)
    assert pace(operator) == (0, 1)
    assert operator.cluster.children[ChildKind.DEPLOYMENT]["spec"]["template"] == before["spec"]["template"]
    assert operator.cluster.condition("RolloutComplete")["reason"] == "SurgeUnschedulable"
    await operator.look(after=10)
    told = [event for event in operator.cluster.events if event.reason == "SurgeUnschedulable"]
    assert len(told) == 1
    assert "no node had room for one pod more" in told[0].message


async def test_an_operator_that_has_not_heard_of_the_deployment_goes_on_alike() -> None:
    operator = await rolling(waited=60)
    await operator.look()
    assert pace(operator) == (0, 1)
    operator.cluster.writes()
    operator.cluster.engine_pods[0] = terminating(operator.cluster.engine_pods[0])
    operator.cluster.unseen, operator.cluster.children = operator.cluster.children, {}
    operator.restart()
    await operator.look()
    assert operator.cluster.writes() in ([], ["patch_status"])
    (noted,) = {
        child["metadata"]["annotations"].get(ANNOTATION_ROLL_IN_PLACE) for child in operator.cluster.unseen.values()
    } - {None}
    assert noted == template_hash(operator.cluster.unseen[ChildKind.DEPLOYMENT])


async def test_a_deployment_that_may_not_be_read_is_told_of_and_one_that_cannot_be_is_left_to_the_queue() -> None:
    operator = await rolling(waited=0)
    operator.cluster.unseen, operator.cluster.children = operator.cluster.children, {}
    operator.restart()
    operator.cluster.failures["read Deployment"] = Refused(
        "read", 403, "Forbidden", 'User "x" cannot get "deployments"'
    )
    await operator.look()
    assert operator.cluster.condition("Degraded")["reason"] == "AccessDenied"
    operator.cluster.failures["read Deployment"] = Unavailable("read", None, "Timeout", "no answer")
    with pytest.raises(Unavailable):
        await operator.look()


async def test_a_pod_that_waits_for_the_room_of_another_is_no_trouble() -> None:
    """In place, each step would else degrade the pool, while the old pod drains and until the scheduler knows."""
    operator = await rolling(waited=60, rollout={"strategy": "InPlace"})
    await operator.look()
    assert degraded(operator) == "True"
    pods = operator.cluster.engine_pods
    pods[0] = terminating(pods[0])
    await operator.look(after=5)
    assert degraded(operator) == "False"
    del pods[0]
    await operator.look(after=5)
    assert degraded(operator) == "False"
    await operator.look(after=11)
    assert degraded(operator) == "True"


async def test_scaling_is_no_roll_not_even_for_a_moment() -> None:
    """The Deployment's status is that of its last spec until its controller has looked at the new one."""
    operator = Operator(replicas=2)
    await operator.settle(2)
    operator.change(replicas=3)
    await operator.look()
    assert operator.cluster.condition("RolloutComplete")["status"] == "True"


async def test_a_roll_counts_its_pods_from_its_first_moment_on() -> None:
    """It said that no old ones were left until the Deployment's status had caught up."""
    operator = Operator(replicas=2)
    await operator.settle(2)
    operator.change(batching={"maxRequests": 8})
    await operator.look()
    told = operator.cluster.condition("RolloutComplete")
    assert (told["status"], told["message"]) == (
        "False",
        "0 of 2 pods are new (0 ready), 2 old ones left, 2 ready in all",
    )


async def test_a_roll_of_one_pod_counts_it_as_one() -> None:
    operator = Operator()
    await operator.settle()
    assert operator.cluster.condition("Ready")["message"] == "1 of 1 pod ready"
    operator.change(batching={"maxRequests": 8})
    await operator.look()
    told = operator.cluster.condition("RolloutComplete")["message"]
    assert told == "0 of 1 pod is new (0 ready), 1 old one left, 1 ready in all"
    operator.change(replicas=0)
    await operator.look()
    assert operator.cluster.condition("RolloutComplete")["message"] == "stopping: 1 pod left"


async def test_the_error_of_a_revision_that_is_being_left_goes_with_the_spec_that_made_it() -> None:
    """Pods that crash live on until their successors are ready, and their error is no news any more."""
    operator = Operator()
    await operator.settle()
    crash = {"state": {"waiting": {"reason": "ErrImagePull", "message": "manifest unknown"}}}
    own = template_hash(operator.cluster.children[ChildKind.DEPLOYMENT])
    assert own is not None
    operator.cluster.engine_pods = [make_pod("chat-0", engine=crash, template_hash=own)]
    await operator.look()
    assert operator.cluster.condition("Degraded")["reason"] == "ImagePullFailed"
    operator.change(batching={"maxRequests": 8})
    await operator.look()
    assert degraded(operator) == "False"
    assert operator.cluster.condition("Ready")["reason"] == "Starting"
    assert operator.cluster.condition("RolloutComplete")["reason"] == "RollingOut"
