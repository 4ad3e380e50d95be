"""The status as it is written: its counts and model, what is worth a write, and which Events go with it."""

from dataclasses import replace
from typing import Any

import pytest

from kvik_operator.errors import PoolError
from kvik_operator.names import ConditionType
from kvik_operator.reconcile.status import invalid_spec, merge_patch
from tests.support.fake_cluster import merged
from tests.support.pools import (
    KEY,
    NOW,
    ended,
    make_deployment,
    make_pod,
    make_pool,
    restarting,
    terminating,
)
from tests.support.status_scene import Scene, info, report

SCALING = {"maxReplicas": 4}
CRASH = restarting(ended(1, "RuntimeError: boom"))


def test_a_ready_pool_is_told_whole() -> None:
    scene = Scene(wanted=2, replicas=2)
    scene.pods = [make_pod("a", ready=True), make_pod("b", ready=True)]
    scene.infos = {
        "uid-a": info(revision="c0ffee", parameters=134, dtype="fp32", context=8192, kv_max_tokens=100),
        "uid-b": info(revision="c0ffee", parameters=134, dtype="fp32", context=4096, kv_max_tokens=90),
    }
    scene.look()
    status = scene.cluster.status
    assert (status["ready"], status["replicas"], status["readyReplicas"]) == ("2/2", 2, 2)
    assert status["selector"] == "kvik.dev/pool=chat"
    assert status["endpoint"] == "http://chat.demo.svc:8000/v1"
    assert status["model"] == {
        "name": "chat",
        "revision": "c0ffee",
        "parameters": 134,
        "dtype": "fp32",
        "contextTokens": 4096,
        "maxTokens": 90,
    }
    assert status["effective"]["batching"]["maxRequests"] == 64
    assert {item["type"]: (item["status"], item["reason"]) for item in status["conditions"]} == {
        "Ready": ("True", "PodsReady"),
        "ModelLoaded": ("True", "ModelLoaded"),
        "ScalingActive": ("False", "FixedReplicas"),
        "RolloutComplete": ("True", "RolloutComplete"),
        "Degraded": ("False", "AsExpected"),
    }


def test_terminating_pods_are_not_counted() -> None:
    """k/k #123296: surge and terminating pods distort what an autoscaler divides by."""
    scene = Scene()
    scene.pods = [make_pod("a", ready=True), terminating(make_pod("b", ready=True))]
    scene.look()
    assert (scene.cluster.status["replicas"], scene.cluster.status["ready"]) == (1, "1/1")


def test_a_second_look_changes_nothing() -> None:
    scene = Scene()
    scene.pods = [make_pod(ready=True)]
    assert scene.look().significant
    again = scene.look(seconds=500)
    assert (again.patch, again.significant, again.events) == ({}, False, ())


def test_new_wording_alone_is_not_significant() -> None:
    scene = Scene(scaling=SCALING)
    scene.pods = [make_pod(ready=True)]
    scene.scaling = report(message="60 %")
    scene.look()
    scene.scaling = replace(report(message="61 %"), last_decision=NOW)
    update = scene.look()
    assert set(update.patch) == {"conditions", "scaling"}
    assert not update.significant
    scene.scaling = report(message="61 %", desired=3)
    assert scene.look().significant


def test_events_tell_of_each_change_once() -> None:
    scene = Scene()
    scene.pods = [make_pod(engine=CRASH)]
    scene.deployment = make_deployment(1, availableReplicas=0)
    (first,) = scene.look().events
    assert (first.type, first.reason) == ("Warning", "CrashLooping")
    assert scene.look(seconds=1).events == ()
    scene.pods = [make_pod(ready=True)]
    scene.deployment = make_deployment(1)
    events = scene.look(seconds=2).events
    assert [(event.type, event.reason) for event in events] == [
        ("Normal", "PodsReady"),
        ("Normal", "RolloutComplete"),
    ]


def test_the_observed_generation_is_the_pools_own() -> None:
    """kserve #6081: it was copied from a child."""
    scene = Scene(generation=7)
    scene.look()
    assert scene.cluster.status["observedGeneration"] == 7
    assert {item["observedGeneration"] for item in scene.cluster.status["conditions"]} == {7}


def test_a_spec_that_cannot_be_read_is_told_and_touches_nothing_else() -> None:
    kept = {"type": "RolloutComplete", "status": "True", "reason": "RolloutComplete"}
    raw = make_pool(status={"conditions": [kept]})
    update = invalid_spec(KEY, raw, [], PoolError("spec.slo.ttft", "is not a duration"), NOW)
    status = merged(raw["status"], update.patch)
    assert status["endpoint"] == "http://chat.demo.svc:8000/v1"
    by_type = {item["type"]: item for item in status["conditions"]}
    assert {item["reason"] for item in by_type.values() if item["type"] in ("Ready", "Degraded", "ModelLoaded")} == {
        "InvalidSpec"
    }
    assert by_type[ConditionType.ROLLOUT_COMPLETE] == kept
    assert by_type[ConditionType.READY]["reason"] == "InvalidSpec"
    assert by_type[ConditionType.READY]["message"] == "spec.slo.ttft: is not a duration"
    assert by_type[ConditionType.DEGRADED]["status"] == "True"
    assert [event.reason for event in update.events] == ["InvalidSpec"]


NO_DURATION = PoolError("spec.slo.ttft", "is not a duration")


def counts(status: dict[str, Any]) -> tuple[str, int, int, str]:
    return status["ready"], status["replicas"], status["readyReplicas"], status["selector"]


def test_pods_are_counted_under_a_spec_that_cannot_be_read() -> None:
    """A new pool has a selector, `kubectl scale` and HPAs need it; a pool whose pods all went does not stay Ready."""
    raw = make_pool(replicas=2, slo={"ttft": "soon"})
    pods = [make_pod("a", ready=True), make_pod("b"), terminating(make_pod("c", ready=True))]
    status = merged({}, invalid_spec(KEY, raw, pods, NO_DURATION, NOW).patch)
    assert counts(status) == ("1/2", 2, 1, "kvik.dev/pool=chat")
    told = {item["type"]: item["message"] for item in status["conditions"]}
    assert told["Ready"] == "1 pod of an earlier specification ready"
    assert told["ModelLoaded"] == "loaded in 1 pod of an earlier specification"

    update = invalid_spec(KEY, {**raw, "status": status}, [], NO_DURATION, NOW)
    assert update.significant
    status = merged(status, update.patch)
    assert counts(status) == ("0/2", 0, 0, "kvik.dev/pool=chat")
    assert {item["type"]: item["status"] for item in status["conditions"]} == {
        "Ready": "False",
        "ModelLoaded": "False",
        "ScalingActive": "False",
        "Degraded": "True",
    }
    assert not invalid_spec(KEY, {**raw, "status": status}, [], NO_DURATION, NOW).patch


@pytest.mark.parametrize(("scaling", "reason"), [(None, "FixedReplicas"), (SCALING, "InvalidSpec")])
def test_a_pool_whose_spec_cannot_be_carried_out_is_not_scaled(scaling: Any, reason: str) -> None:
    raw = make_pool(engine={"version": "0.2.0"}, **({"scaling": scaling} if scaling else {}))
    status = merged({}, invalid_spec(KEY, raw, [], PoolError("spec.engine.version", "no"), NOW).patch)
    (active,) = (item for item in status["conditions"] if item["type"] == "ScalingActive")
    assert (active["status"], active["reason"]) == ("False", reason)


@pytest.mark.parametrize(
    ("before", "after", "want"),
    [
        ({}, {"a": 1}, {"a": 1}),
        ({"a": 1}, {}, {"a": None}),
        ({"a": {"b": 1, "c": 2}}, {"a": {"b": 1}}, {"a": {"c": None}}),
        ({"a": [1]}, {"a": [1, 2]}, {"a": [1, 2]}),
        ({"a": {"b": 1}}, {"a": {"b": 1}}, {}),
        ({"a": 1}, {"a": {"b": 1}}, {"a": {"b": 1}}),
    ],
)
def test_a_merge_patch_holds_only_what_differs(before: Any, after: Any, want: Any) -> None:
    assert merge_patch(before, after) == want
    assert merged(before, want) == after
