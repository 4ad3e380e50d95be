"""The scale loop where somebody else carries a decision out, or gets in its way: what `scaling.driver` asks for."""

from typing import Any

import pytest

from kvik_operator.autoscale.drivers import Means
from kvik_operator.autoscale.rivals import Rival
from kvik_operator.names import Reason
from tests.support.scale_world import World

OWNER = {"apiVersion": "kvik.dev/v1alpha1", "kind": "InferencePool", "controller": True, "uid": "pool-1"}
OWN_AUTOSCALER: dict[str, Any] = {
    "metadata": {"name": "chat", "ownerReferences": [OWNER]},
    "status": {"conditions": [{"type": "ScalingActive", "status": "True"}]},
}


async def test_driver_external_decides_and_publishes_and_writes_nothing() -> None:
    world = World(driver="External", maxReplicas=4)
    world.load(20)
    await world.rounds(3)
    assert world.written == []
    assert (world.report.active, world.report.desired) == (True, 2)
    assert world.report.message.startswith("driver External: ")
    world.set_replicas(3)  # whoever it is may do so as often as they like
    world.set_replicas(1)
    world.set_replicas(4)
    await world.rounds(1)
    assert world.report.reason is not Reason.CONTESTED
    assert world.looked_for_rivals == [set()] * len(world.looked_for_rivals), "they are welcome"


async def test_driver_hpa_leaves_the_writing_to_the_autoscaler_and_tells_of_its_steps() -> None:
    world = World(driver="HPA", maxReplicas=4)
    world.autoscaler = OWN_AUTOSCALER
    world.load(20)
    await world.rounds(3)
    assert (world.written, world.report.desired) == ([], 2)
    assert world.report.message.startswith("driver HPA: ")
    world.load(0)
    world.set_replicas(2)
    await world.rounds(1)
    (event,) = world.events
    decided = "400 % of full x 1 pod / 75 % -> 6, at most doubling in 15 s: 2"  # when the autoscaler took it over
    assert event.message == f"from 1 to 2 replicas by driver HPA: {decided}"
    assert [(step.from_replicas, step.to_replicas) for step in world.report.history] == [(1, 2)]


async def test_a_follower_tells_of_no_step_of_an_autoscaler() -> None:
    world = World(driver="HPA", maxReplicas=4)
    world.leader, world.autoscaler = False, OWN_AUTOSCALER
    world.load(20)
    await world.rounds(2)
    world.set_replicas(2)
    await world.rounds(1)
    assert world.events == []
    assert world.looked_for_rivals == []


@pytest.mark.parametrize("rounds_as_follower", [0, 2])
async def test_a_step_that_was_taken_while_nobody_led_is_told_of_by_who_leads_next(rounds_as_follower: int) -> None:
    """The operator was killed, and KEDA's autoscaler went on with the figure that it had."""
    world = World(driver="HPA", maxReplicas=4)
    world.leader, world.autoscaler = False, OWN_AUTOSCALER
    numbers = {"reason": "ScaledUp", "winner": "queue", "loadPercent": 400, "formula": "400 % of full"}
    step = {"time": "2026-01-01T00:00:00Z", "from": 1, "to": 2, **numbers}
    world.set_replicas(3)
    world.object = {**world.object, "status": {"scaling": {"history": [step]}}}
    world.load(20)
    await world.rounds(rounds_as_follower)
    assert world.events == []
    world.leader = True
    await world.rounds(2)
    (event,) = world.events
    assert event.message.startswith("from 2 to 3 replicas by driver HPA: ")
    assert [(each.from_replicas, each.to_replicas) for each in world.report.history] == [(2, 3), (1, 2)]


@pytest.mark.parametrize(("told", "events"), [(True, 0), (False, 1)])
async def test_a_new_leader_tells_of_a_step_that_its_predecessor_has_not_told_of(told: bool, events: int) -> None:
    """Both saw the autoscaler's change, one before and one after the Lease changed hands."""
    world = World(driver="HPA", maxReplicas=4)
    world.leader, world.autoscaler = False, OWN_AUTOSCALER
    world.load(20)
    await world.rounds(2)
    world.set_replicas(2)
    numbers = {"reason": "ScaledUp", "winner": "queue", "loadPercent": 400, "formula": "400 % of full"}
    step = {"time": "2026-01-01T00:00:00Z", "from": 1, "to": 2, **numbers}
    world.object = {**world.object, "status": {"scaling": {"history": [step] if told else []}}}
    world.leader = True
    await world.rounds(1)
    assert len(world.events) == events
    world.set_replicas(1)
    world.set_replicas(2)  # between two looks
    await world.rounds(1)
    assert len(world.events) == events


async def test_a_leader_tells_of_every_step_even_if_it_is_like_the_last_one() -> None:
    world = World(driver="HPA", maxReplicas=4)
    world.autoscaler = OWN_AUTOSCALER
    world.load(20)
    for replicas in (1, 2, 1, 2):
        world.set_replicas(replicas)
        await world.rounds(1)
    assert [(step.from_replicas, step.to_replicas) for step in world.report.history] == [(1, 2), (2, 1), (1, 2)]


async def test_driver_hpa_without_the_metrics_api_says_what_to_do() -> None:
    world = World(means=Means(), driver="HPA", maxReplicas=4)
    world.load(20)
    await world.rounds(1)
    assert (world.report.active, world.report.reason) == (False, Reason.METRICS_API_OFF)
    assert "metricsAPI.enabled" in world.report.message


async def test_native_waits_until_the_autoscaler_of_the_driver_before_is_gone() -> None:
    world = World(maxReplicas=4)
    world.autoscaler = OWN_AUTOSCALER
    world.load(20)
    await world.rounds(3)
    assert world.written == []
    assert (world.report.active, world.report.reason) == (False, Reason.SWITCHING_DRIVER)
    world.autoscaler = None
    await world.rounds(1)
    assert world.written == [2]


async def test_nobody_scales_beside_an_autoscaler_that_is_not_the_pools() -> None:
    world = World(maxReplicas=4)
    world.rivals = [Rival("by-hand")]
    world.load(20)
    await world.rounds(3)
    assert world.written == []
    assert (world.report.active, world.report.reason) == (False, Reason.CONTESTED)
    assert "the HorizontalPodAutoscaler by-hand scales this pool, too" in world.report.message
    assert world.looked_for_rivals == [{"demo"}] * 3
    world.rivals = []
    await world.rounds(1)
    assert world.written == [2]


async def test_what_keda_makes_of_the_pools_scaled_object_is_no_rival_also_after_that_is_gone() -> None:
    world = World(driver="KEDA", maxReplicas=4)
    conditions = [{"type": "Ready", "status": "True"}]
    metadata = {"name": "chat", "uid": "scaled-1", "ownerReferences": [OWNER]}
    world.scaled_object = {"metadata": metadata, "status": {"conditions": conditions}}
    world.rivals = [Rival("keda-hpa-chat", "scaled-1")]
    world.load(20)
    await world.rounds(2)
    assert (world.report.active, world.written) == (True, [])
    assert world.report.message.startswith("driver KEDA: ")
    world.set_replicas(2)
    await world.rounds(1)
    assert world.events[0].message.startswith("from 1 to 2 replicas by driver KEDA: ")
    spec = {**world.object["spec"], "scaling": {"maxReplicas": 4}}
    world.object, world.scaled_object = {**world.object, "spec": spec}, None
    await world.rounds(3)
    assert world.written == [4]
    world.rivals = [Rival("keda-hpa-other", "scaled-2")]
    await world.rounds(1)
    assert world.report.reason is Reason.CONTESTED


async def test_an_autoscaler_without_data_is_not_what_is_wrong() -> None:
    world = World(driver="HPA", maxReplicas=4)
    condition = {"type": "ScalingActive", "status": "False", "reason": "FailedGetObjectMetric", "message": "no value"}
    world.autoscaler = {**OWN_AUTOSCALER, "status": {"conditions": [condition]}}
    await world.rounds(1)
    assert world.report.reason is Reason.NO_LOAD_DATA
    world.load(20)
    await world.rounds(1)
    assert world.report.reason is Reason.OBSERVING_LOAD  # it may not have looked since there is a value
    await world.rounds(10)
    assert world.report.reason is Reason.AUTOSCALER_FAILED
    assert world.report.message == "the pool's HorizontalPodAutoscaler: FailedGetObjectMetric: no value"
    assert world.report.desired is not None  # it needs the value to recover


async def test_an_autoscaler_that_cannot_scale_is_told_of_without_data_too() -> None:
    world = World(driver="HPA", maxReplicas=4)
    condition = {"type": "AbleToScale", "status": "False", "reason": "FailedUpdateScale", "message": "forbidden"}
    world.autoscaler = {**OWN_AUTOSCALER, "status": {"conditions": [condition]}}
    await world.rounds(1)
    assert world.report.reason is Reason.AUTOSCALER_FAILED
