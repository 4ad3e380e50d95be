"""RolloutComplete: what is a roll, and when it is over."""

from typing import Any

import pytest

from tests.support.pools import (
    make_deployment,
    make_pod,
    pod_condition,
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
    counts = {"replicas": replicas, "updatedReplicas": replicas, "availableReplicas": available}
    scene.deployment = make_deployment(3, **counts, conditions=[rolled_out])
    scene.pods = [make_pod("a", ready=True)]
    scene.look()
    assert scene.condition("RolloutComplete")[:2] == ("True", "RolloutComplete")


def test_a_new_template_is_a_rollout_as_soon_as_it_is_written() -> None:
    scene = Scene(wanted=1)
    rolled_out = pod_condition("Progressing", True, -60, reason="NewReplicaSetAvailable")
    scene.deployment = make_deployment(1, observedGeneration=0, conditions=[rolled_out])
    scene.look()
    assert scene.condition("RolloutComplete")[:2] == ("False", "RollingOut")
    scene.deployment = make_deployment(1, replicas=2, updatedReplicas=1, conditions=[rolled_out])
    scene.look()
    assert scene.condition("RolloutComplete")[:2] == ("False", "RollingOut")
