"""RolloutComplete: what is a roll, and when it is over."""

from typing import Any

import pytest

from tests.support.pools import (
    ended,
    make_deployment,
    make_pod,
    pod_condition,
    restarting,
    unschedulable,
)
from tests.support.status_scene import Scene

TIMED_OUT = pod_condition("Progressing", False, 0, reason="ProgressDeadlineExceeded")


@pytest.mark.parametrize(
    ("status", "want"),
    [
        ({"updatedReplicas": 1}, "RollingOut"),
        ({"replicas": 3}, "RollingOut"),
        ({"availableReplicas": 1}, "RollingOut"),
        ({"observedGeneration": 0}, "RollingOut"),
        ({"updatedReplicas": 1, "conditions": [TIMED_OUT]}, "ProgressDeadlineExceeded"),
    ],
)
def test_a_rollout_is_complete_only_when_every_pod_is_new_and_ready(status: dict[str, Any], want: str) -> None:
    scene = Scene(wanted=2)
    scene.deployment = make_deployment(2, **status)
    scene.pods = [make_pod("a", ready=True), make_pod("b", ready=True)]
    scene.look()
    assert scene.condition("RolloutComplete")[:2] == ("False", want)


@pytest.mark.parametrize(("replicas", "available"), [(2, 1), (2, 0), (4, 3)])
def test_scaling_and_restarts_are_no_rollouts(replicas: int, available: int) -> None:
    """Each of them would else tell of a roll by a condition that flips and two Events."""
    scene = Scene(wanted=3)
    rolled_out = pod_condition("Progressing", True, -60, reason="NewReplicaSetAvailable")
    scene.look()
    counts = {"replicas": replicas, "updatedReplicas": replicas, "availableReplicas": available}
    scene.deployment = make_deployment(3, **counts, conditions=[rolled_out])
    scene.pods = [make_pod("a", ready=True)]
    scene.look()
    assert scene.condition("RolloutComplete")[:2] == ("True", "RolloutComplete")


def test_a_change_made_while_stopped_is_complete_once_a_pod_of_it_was_ready() -> None:
    """The Deployment itself takes a template that came while it had no pods for available for ever."""
    scene = Scene(wanted=0)
    rolled_out = pod_condition("Progressing", True, -60, reason="NewReplicaSetAvailable")
    scene.look()
    assert scene.condition("RolloutComplete")[0] == "True"
    assert "current" not in scene.revision()

    scene.wanted = 1
    scene.deployment = make_deployment(1, observedGeneration=0, conditions=[rolled_out])
    scene.pods = [make_pod("a")]
    scene.look()
    assert scene.condition("RolloutComplete")[:2] == ("False", "RollingOut")
    scene.deployment = make_deployment(1, availableReplicas=0, conditions=[rolled_out])
    for _ in range(2):
        scene.look()
        assert scene.condition("RolloutComplete")[:2] == ("False", "RollingOut")
    assert "current" not in scene.revision()

    scene.deployment = make_deployment(1, conditions=[rolled_out])
    scene.pods = [make_pod("a", ready=True)]
    scene.look()
    assert scene.condition("RolloutComplete")[0] == "True"
    assert scene.revision()["current"] == scene.revision()["updated"]


def test_a_new_template_is_a_rollout_as_soon_as_it_is_written() -> None:
    scene = Scene(wanted=1)
    rolled_out = pod_condition("Progressing", True, -60, reason="NewReplicaSetAvailable")
    scene.deployment = make_deployment(1, observedGeneration=0, conditions=[rolled_out])
    scene.look()
    assert scene.condition("RolloutComplete")[:2] == ("False", "RollingOut")
    scene.deployment = make_deployment(1, replicas=2, updatedReplicas=1, conditions=[rolled_out])
    scene.look()
    assert scene.condition("RolloutComplete")[:2] == ("False", "RollingOut")


FULL = "0/1 nodes are available: 1 Insufficient memory."
NOWHERE = "0/1 nodes are available: preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling."
QUOTA = {"type": "ReplicaFailure", "status": "True", "message": "exceeded quota: q"}


@pytest.mark.parametrize(
    ("strategy", "waits", "conditions", "want"),
    [
        ("Auto", FULL, [], "; if it stays so for 60 s, this roll goes on in place"),
        ("Auto", NOWHERE, [], "; no pod is ended for it, since it would not fit even then"),
        ("Surge", FULL, [], "; this roll waits for room: spec.rollout.strategy InPlace needs no room for one pod more"),
        ("InPlace", FULL, [], FULL),
        ("Auto", FULL, [QUOTA], "; spec.rollout.strategy InPlace needs no room for one pod more"),
    ],
)
def test_a_roll_that_finds_no_room_says_what_comes_next(
    strategy: str, waits: str, conditions: list[dict[str, Any]], want: str
) -> None:
    scene = Scene(wanted=1, rollout={"strategy": strategy})
    scene.deployment = make_deployment(1, replicas=2, updatedReplicas=1, conditions=conditions)
    scene.pods = [make_pod("old", ready=True, template_hash="older"), unschedulable("new", waits)]
    scene.look()
    assert scene.condition("RolloutComplete")[2].endswith(want)
    assert "place" not in scene.condition("Degraded")[2]


def test_an_old_pod_in_trouble_is_told_of_while_others_of_its_revision_serve() -> None:
    scene = Scene(wanted=2)
    scene.deployment = make_deployment(2, replicas=3, updatedReplicas=1, availableReplicas=1)
    broken = make_pod("a", engine=restarting(ended(137, reason="OOMKilled")), template_hash="older")
    scene.pods = [broken, make_pod("b", ready=True, template_hash="older"), make_pod("c")]
    scene.look()
    assert scene.condition("Degraded")[:2] == ("True", "OutOfMemory")
    scene.pods[1] = make_pod("b", engine=restarting(ended(137, reason="OOMKilled")), template_hash="older")
    scene.look()
    assert scene.condition("Degraded")[0] == "False", "a revision that does not serve is being left"
