"""The scale loop against fakes: who writes, on what, and what it says about it."""

from dataclasses import replace
from typing import Any

import pytest

from kvik_operator.autoscale.types import EngineState
from kvik_operator.errors import ClusterError, Conflict, NotFound, Refused, Unavailable
from kvik_operator.names import Reason
from tests.support.scale_world import IDLE, KEY, World, pool_object


async def test_load_scales_the_pool_up_and_the_event_says_why() -> None:
    world = World(maxReplicas=4)
    world.load(waiting=10)
    await world.rounds(2)
    assert world.written == [2]
    (event,) = world.events
    assert (event.type, event.reason, event.pool_uid) == ("Normal", "ScaledUp", "pool-1")
    want = "200 % of full x 1 pod / 75 % -> 3, at most doubling in 15 s: 2"
    assert event.message == f"from 1 to 2 replicas on queue: {want}"
    (step,) = world.report.history
    assert (step.from_replicas, step.to_replicas, step.winner, step.load_percent) == (1, 2, "queue", 200)
    assert step.formula == want


async def test_idleness_scales_down_after_the_window() -> None:
    world = World(replicas=3, maxReplicas=4, scaleDownStabilization="30s")
    world.load(waiting=0)
    await world.rounds(6)
    assert world.written == []
    await world.rounds(1)
    assert world.written == [2]
    await world.rounds(2)  # a third of the window later
    assert world.written == [2, 1]
    assert world.report.reason is Reason.SCALING_ON_LOAD
    assert [event.message.partition(" on ")[0] for event in world.events] == [
        "from 3 to 2 replicas",
        "from 2 to 1 replica",
    ]


async def test_only_the_leader_writes_but_every_replica_decides() -> None:
    world = World(maxReplicas=4)
    world.leader = False
    world.load(waiting=10)
    await world.rounds(5)
    assert (world.written, world.events) == ([], [])
    assert world.report.desired == 2


GOING = pool_object(2, generation=2, maxReplicas=4)
GOING["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
NEWER = {
    "stopped": pool_object(0, generation=2, maxReplicas=4),
    "scaled by hand": pool_object(4, generation=2, maxReplicas=4),
    "fixed": pool_object(2, generation=2),
    "made again": pool_object(2, uid="pool-2", maxReplicas=4),
    "going": GOING,
}


@pytest.mark.parametrize("waiting", [0, 10], ids=["down", "up"])
@pytest.mark.parametrize("newer", NEWER)
async def test_nothing_is_scaled_up_or_down_on_old_knowledge(
    newer: str, waiting: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A pool that was stopped stays stopped, however late the watch is."""
    world = World(replicas=2, maxReplicas=4, scaleDownStabilization="30s")
    world.load(waiting=waiting)
    world.server = NEWER[newer]
    await world.rounds(10)
    assert world.written == []
    assert "bug" not in caplog.text


async def test_a_write_that_somebody_else_beat_is_no_refusal_and_decided_anew() -> None:
    world = World(maxReplicas=4)
    world.error = Conflict("scale", 409, "Conflict", "the object has been modified")
    world.load(waiting=10)
    await world.rounds(3)
    assert (world.written, world.events, world.report.active) == ([], [], True)
    world.error = None
    await world.rounds(1)
    assert world.written == [2]


PASSING = {
    "time-out": Unavailable("scale", None, "TimeoutError", "the API server did not answer in time"),
    "429": Unavailable("scale", 429, "TooManyRequests", "slow down", 1.0),
    "fence": Unavailable("scale", None, "NotLeader", "another replica may be the leader now"),
    "gone": NotFound("scale", 404, "NotFound", 'inferencepools.kvik.dev "chat" not found'),
}


@pytest.mark.parametrize("error", PASSING.values(), ids=PASSING)
async def test_a_write_that_fails_in_passing_is_no_refusal_and_tried_again(error: ClusterError) -> None:
    world = World(maxReplicas=4)
    world.error = error
    world.load(waiting=10)
    await world.rounds(3)
    assert (world.written, world.events) == ([], [])
    assert (world.report.active, world.report.reason, world.report.desired) == (True, Reason.OBSERVING_LOAD, 2)
    world.error = None
    await world.rounds(1)
    assert world.written == [2]


async def test_a_write_that_was_carried_out_though_it_timed_out_is_nobody_elses() -> None:
    """Three of them would otherwise be three foreign changes, and the pool Contested."""
    world = World(maxReplicas=8)
    world.load(waiting=20)
    for replicas in (2, 4, 8):
        world.error = PASSING["time-out"]
        await world.rounds(4)
        world.set_replicas(replicas)
    await world.rounds(2)
    assert world.report.reason is not Reason.CONTESTED
    assert world.report.active


async def test_load_and_size_are_measured_only_while_they_are_known() -> None:
    world = World(maxReplicas=4)
    world.load(waiting=3)
    await world.rounds(2)
    load, desired = world.gauges[KEY]
    assert (round(load, 3), desired) == (0.6, 1)
    world.readings = {}
    await world.rounds(4)
    assert world.gauges == {}, "no data is not a load of 0"
    world.load(waiting=3)
    await world.rounds(2)
    assert KEY in world.gauges
    world.set_replicas(0)
    await world.rounds(1)
    assert world.gauges == {}, "stopped"
    world.set_replicas(1)
    await world.rounds(2)
    del world.object["spec"]["scaling"]
    await world.rounds(1)
    assert world.gauges == {}, "fixed"


async def test_a_number_that_is_on_its_way_is_not_written_again() -> None:
    world = World(maxReplicas=4)
    world.load(waiting=10)
    await world.rounds(2)
    world.set_replicas(1)  # the watch lags behind
    world.now -= 5.0
    await world.rounds(2)
    assert world.written == [2]


async def test_a_stopped_pool_is_scaled_by_nobody() -> None:
    world = World(replicas=0, maxReplicas=4)
    world.load(waiting=10)
    await world.rounds(5)
    assert world.written == []
    assert (world.report.active, world.report.reason) == (False, Reason.STOPPED)


async def test_a_paused_pool_is_scaled_by_nobody_until_the_pause_ends() -> None:
    world = World(replicas=1, maxReplicas=4)
    world.object["metadata"]["annotations"] = {"kvik.dev/paused": "true"}
    world.load(waiting=10)
    await world.rounds(5)
    assert world.written == []
    assert (world.report.active, world.report.reason) == (False, Reason.PAUSED)
    paused, world.object["metadata"]["annotations"] = world.object["metadata"]["annotations"], {}
    world.server = {**world.object, "metadata": {**world.object["metadata"], "annotations": paused}}
    await world.rounds(5)
    assert world.written == []  # paused again, which the watch has not brought yet
    world.server = None
    await world.rounds(5)
    assert world.written


async def test_a_pool_without_scaling_gets_no_report() -> None:
    world = World(replicas=2)
    await world.rounds(2)
    assert world.board.scaling(KEY, "pool-1") is None


async def test_no_data_holds_and_says_so() -> None:
    world = World(replicas=3, maxReplicas=4, scaleDownStabilization="30s")
    world.load(waiting=0)
    await world.rounds(3)
    world.readings = {}
    await world.rounds(20)
    assert world.written == []
    assert (world.report.active, world.report.reason) == (False, Reason.NO_LOAD_DATA)
    assert "3 of its pods say nothing" in world.report.message


async def test_bounds_hold_without_data_but_nobody_calls_that_scaling_on_load() -> None:
    world = World(maxReplicas=4, minReplicas=2)
    await world.rounds(1)
    assert world.written == [2]
    assert (world.report.active, world.report.reason, world.report.desired) == (False, Reason.NO_LOAD_DATA, 2)


async def test_a_roll_under_load_changes_nothing_of_what_is_decided() -> None:
    """k/k #123296: surge pods distort what an average is divided by, and a pool that rolls is scaled."""
    world = World(replicas=2, maxReplicas=6, scaleDownStabilization="30s")
    starting = replace(IDLE, state=EngineState.STARTING, warm_since=None)
    half, third = replace(IDLE, waiting=3), replace(IDLE, waiting=2)
    first, second, surge = (pod(n) for n in range(3))
    going = {**first, "metadata": {**first["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}}
    for pods, readings in (
        ([first, second], [half, half]),
        ([first, second, surge], [half, half, starting]),
        ([first, second, surge], [third, third, third]),
        ([going, second, surge], [half, half, half]),
        ([second, surge], [half, half, half]),
    ):
        world.pods = lambda _, pods=pods: pods
        world.readings = {f"p{n}": reading for n, reading in enumerate(readings)}
        await world.rounds(8)
        assert world.report.desired == 2
    assert world.written == []


def pod(number: int) -> dict[str, Any]:
    return {"metadata": {"uid": f"p{number}"}, "status": {"podIP": f"10.0.0.{number}"}}


async def test_two_writers_do_not_fight() -> None:
    """LLMKube #484."""
    world = World(maxReplicas=4)
    world.load(waiting=10)
    for _ in range(4):
        await world.rounds(4)
        world.set_replicas(1)
    await world.rounds(1)
    written = len(world.written)
    assert (world.report.active, world.report.reason) == (False, Reason.CONTESTED)
    await world.rounds(20)
    assert len(world.written) == written


DENIED = Refused("scale", 403, "Forbidden", 'User "u" cannot patch resource "inferencepools/scale"')
INVALID = Refused("scale", 422, "Invalid", "a webhook does not like it")


@pytest.mark.parametrize(("error", "reason"), [(DENIED, Reason.ACCESS_DENIED), (INVALID, Reason.APPLY_REFUSED)])
async def test_a_refusal_is_reported_and_tried_again(error: ClusterError, reason: Reason) -> None:
    world = World(maxReplicas=4)
    world.error = error
    world.load(waiting=10)
    await world.rounds(3)
    assert (world.report.active, world.report.reason) == (False, reason)
    world.error = None
    await world.rounds(1)
    assert world.written == [2]


async def test_a_pool_of_the_same_name_starts_anew() -> None:
    world = World(replicas=3, maxReplicas=4, scaleDownStabilization="30s")
    world.load(waiting=0)
    await world.rounds(5)
    world.object = pool_object(3, uid="pool-2", maxReplicas=4, scaleDownStabilization="30s")
    assert world.board.scaling(KEY, "pool-2") is None, "what is known is of its predecessor"
    world.enqueued.clear()
    await world.rounds(1)
    assert KEY in world.enqueued
    assert world.board.scaling(KEY, "pool-1") is None
    await world.rounds(5)
    assert world.written == []


async def test_a_pool_of_the_same_name_has_a_history_of_its_own() -> None:
    """Deleted and made anew between two rounds: its status is written before the loop has looked at it."""
    world = World(maxReplicas=4)
    world.load(waiting=10)
    await world.rounds(2)
    assert len(world.report.history) == 1
    world.object = pool_object(1, uid="pool-2", maxReplicas=4)
    world.load(waiting=0)
    await world.rounds(1)
    assert world.report.history == ()


async def test_the_history_in_status_outlives_the_operator() -> None:
    """keda #3927: what was known before a restart is known after it."""
    world = World(replicas=2, maxReplicas=4)
    step = {"time": "2026-01-01T00:00:00Z", "from": 1, "to": 2, "reason": "ScaledUp", "winner": "kv"}
    world.object["status"] = {"scaling": {"history": [step | {"loadPercent": 90, "formula": "f"}, {"broken": True}]}}
    world.load(waiting=0)
    await world.rounds(1)
    assert [(step.from_replicas, step.to_replicas) for step in world.report.history] == [(1, 2)]


async def test_info_is_asked_once_and_its_pool_looked_at() -> None:
    world = World(replicas=2, maxReplicas=4)
    world.load(waiting=0)
    await world.rounds(3)
    assert sorted(world.asked_info) == ["p0", "p1"]
    assert KEY in world.enqueued


async def test_a_pool_is_looked_at_when_a_pod_says_something_else_of_its_api_keys() -> None:
    world = World()
    world.load(waiting=0)
    await world.rounds(2)
    world.enqueued.clear()
    for outdated, want in ((True, [KEY]), (True, []), (None, [KEY]), (False, [])):
        world.readings = {"p0": replace(IDLE, api_keys_outdated=outdated)}
        await world.rounds(1)
        assert world.enqueued == want
        assert world.board.keys_outdated("p0") is bool(outdated)
        world.enqueued.clear()


async def test_an_unreadable_pool_is_left_to_reconcile() -> None:
    world = World(maxReplicas=4)
    world.object["spec"]["scaling"]["scaleDownStabilization"] = "soon"
    await world.rounds(1)
    assert world.board.scaling(KEY, "pool-1") is None


async def test_a_pool_that_reconcile_refuses_is_not_scaled_until_it_is_mended() -> None:
    """Its replicas would not reach the Deployment, and the load would never fall: up to maxReplicas, for nothing."""
    world = World(replicas=2, maxReplicas=8)
    world.load(waiting=10)
    world.object["status"] = {"conditions": [{"type": "Degraded", "status": "True", "reason": "InvalidSpec"}]}
    await world.rounds(10)
    assert (world.written, world.board.scaling(KEY, "pool-1"), world.gauges) == ([], None, {})
    world.object["status"] = {"conditions": [{"type": "Degraded", "status": "False", "reason": "AsExpected"}]}
    await world.rounds(2)
    assert world.written == [4]


async def test_a_bug_with_one_pool_is_not_the_end_of_the_loop(caplog: pytest.LogCaptureFixture) -> None:
    world = World(maxReplicas=4)
    world.load(waiting=10)
    await world.rounds(1)
    whole, world.object = world.object, {**world.object, "metadata": {}}
    await world.rounds(1)
    assert "scaling failed: this is a bug" in caplog.text
    world.object = whole
    await world.rounds(1)
    assert world.written == [2]
