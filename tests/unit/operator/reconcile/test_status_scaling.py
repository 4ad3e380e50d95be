"""ScalingActive, status.scaling, and the Events about both."""

from datetime import timedelta

from kvik_operator.names import Reason
from kvik_operator.reconcile.types import ScaleStep
from tests.support.pools import (
    NOW,
    at,
    make_pod,
)
from tests.support.status_scene import Scene, report

SCALING = {"maxReplicas": 4}


def step(seconds: int, to: int) -> ScaleStep:
    return ScaleStep(NOW + timedelta(seconds=seconds), to - 1, to, "up", "kv", 180, f"60 % of full x 3 pods -> {to}")


def test_a_decision_is_told_with_its_numbers() -> None:
    scene = Scene(scaling=SCALING)
    scene.pods = [make_pod(ready=True)]
    scene.scaling = report(step(-5, 2))
    scene.look()
    assert scene.condition("ScalingActive") == ("True", "ScalingOnLoad", "60 %")
    assert scene.cluster.status["scaling"] == {
        "desired": 2,
        "reason": "60 %",
        "lastDecisionTime": at(-5),
        "history": [
            {
                "time": at(-5),
                "from": 1,
                "to": 2,
                "reason": "up",
                "winner": "kv",
                "loadPercent": 180,
                "formula": "60 % of full x 3 pods -> 2",
            }
        ],
    }


def test_scaling_without_data_says_so() -> None:
    scene = Scene(scaling=SCALING)
    scene.look()
    assert scene.condition("ScalingActive")[:2] == ("False", "ObservingLoad")
    scene.scaling = report(active=False, reason=Reason.NO_LOAD_DATA, message="no pod answers")
    scene.look()
    assert scene.condition("ScalingActive") == ("False", "NoLoadData", "no pod answers")


def test_a_fresh_operator_keeps_the_history_of_its_predecessor() -> None:
    """KubeAI #265: the scale state was lost with every upgrade."""
    scene = Scene(scaling=SCALING)
    scene.scaling = report(*(step(-seconds, 2) for seconds in range(10, 60, 10)))
    scene.look()
    scene.scaling = None
    assert scene.look().patch == {} or "scaling" not in scene.look().patch
    scene.scaling = report(step(-5, 3))
    scene.look()
    history = [item["time"] for item in scene.cluster.status["scaling"]["history"]]
    assert history == [at(-5), at(-10), at(-20), at(-30), at(-40)]


def test_scaling_that_was_removed_leaves_the_status() -> None:
    scene = Scene(scaling=SCALING)
    scene.scaling = report(step(-5, 2))
    scene.look()
    assert scene.cluster.stored_pool is not None
    del scene.cluster.stored_pool["spec"]["scaling"]
    scene.scaling = None
    scene.look()
    assert "scaling" not in scene.cluster.status
    assert "scaling" not in scene.cluster.status["effective"]


def test_a_stray_scaling_in_the_status_is_taken_out_and_not_written_as_rarely_as_a_time() -> None:
    scene = Scene()
    scene.look()
    scene.cluster.status["scaling"] = {"lastDecisionTime": at(-5)}
    update = scene.look()
    assert (update.patch, update.time_alone) == ({"scaling": None}, False)


def scaled_events(scene: Scene) -> list[tuple[str, str]]:
    return [(event.type, event.reason) for event in scene.look().events]


def test_a_pool_that_is_fought_over_is_told_by_an_event_once() -> None:
    scene = Scene(scaling=SCALING)
    scene.pods = [make_pod(ready=True)]
    scene.scaling = report()
    scene.look()
    scene.scaling = report(active=False, reason=Reason.CONTESTED, message="somebody else", desired=None)
    assert scaled_events(scene) == [("Warning", "Contested")]
    assert scaled_events(scene) == []


def test_a_serving_pool_that_says_nothing_any_more_is_told_by_an_event_and_a_starting_one_is_not() -> None:
    silent = report(active=False, reason=Reason.NO_LOAD_DATA, message="1 of its pods says nothing", desired=None)
    scene = Scene(scaling=SCALING)
    scene.look()
    scene.scaling = silent
    assert "NoLoadData" not in {reason for _, reason in scaled_events(scene)}
    scene.pods = [make_pod(ready=True)]
    assert "NoLoadData" not in {reason for _, reason in scaled_events(scene)}
    scene.scaling = report()
    scene.look()
    scene.scaling = silent
    assert scaled_events(scene) == [("Warning", "NoLoadData")]
    assert scaled_events(scene) == []
