"""The status a user reads, from pods, Deployment and readings."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from kvik_operator.errors import PoolError
from kvik_operator.names import ChildKind, ConditionType, Reason
from kvik_operator.reconcile.observe import observe
from kvik_operator.reconcile.status import Reports, invalid_spec, merge_patch, status_update
from kvik_operator.reconcile.types import (
    Applied,
    ApplyProblem,
    EngineInfo,
    ScaleStep,
    ScalingReport,
    StatusUpdate,
)
from tests.support.fake_cluster import FakeCluster, merged
from tests.support.pools import (
    KEY,
    NOW,
    at,
    ended,
    make_deployment,
    make_pod,
    make_pool,
    pod_condition,
    restarting,
    terminating,
)

SCALING = {"maxReplicas": 4}
CRASH = restarting(ended(1, "RuntimeError: boom"))
TIMED_OUT = pod_condition("Progressing", False, 0, reason="ProgressDeadlineExceeded")


class Scene:
    """One pool and what is known about it; `look` writes the status as the operator would."""

    def __init__(self, wanted: int = 1, **groups: Any) -> None:
        self.cluster = FakeCluster(make_pool(**groups))
        self.wanted = wanted
        self.deployment: dict[str, Any] | None = make_deployment(wanted)
        self.pods: list[dict[str, Any]] = []
        self.problems: tuple[ApplyProblem, ...] = ()
        self.infos: dict[str, EngineInfo] = {}
        self.scaling: ScalingReport | None = None

    def look(self, seconds: float = 0) -> StatusUpdate:
        pool = self.cluster.stored_pool
        assert pool is not None
        self.cluster.engine_pods = self.pods
        observed = observe(KEY, pool, self.cluster, NOW + timedelta(seconds=seconds))
        children = {} if self.deployment is None else {ChildKind.DEPLOYMENT: self.deployment}
        update = status_update(
            observed, self.wanted, Applied(children, self.problems), Reports(self.infos, self.scaling)
        )
        pool["status"] = merged(pool.get("status") or {}, update.patch)
        return update

    def condition(self, type_: str) -> tuple[str, str, str]:
        found = self.cluster.condition(type_)
        return found["status"], found["reason"], found["message"]


def info(**values: Any) -> EngineInfo:
    return EngineInfo(version="0.1.0", model_name="chat", **values)


def test_a_pool_is_never_ready_with_no_ready_pod() -> None:
    """kserve #1859: Ready=True while every pod crash-looped."""
    scene = Scene()
    scene.pods = [make_pod(engine=CRASH)]
    scene.look()
    assert scene.condition("Ready")[:2] == ("False", "CrashLooping")
    assert scene.cluster.status["ready"] == "0/1"


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


@pytest.mark.parametrize(
    ("pod", "want"),
    [
        (make_pod(scheduled=False), "Starting"),
        (make_pod(model={"state": {"running": {"startedAt": at(-5)}}}), "ModelFetching"),
        (make_pod(), "ModelLoading"),
    ],
)
def test_a_starting_pool_says_how_far_it_is(pod: dict[str, Any], want: str) -> None:
    scene = Scene()
    scene.pods = [pod]
    scene.look()
    assert scene.condition("Ready")[:2] == ("False", want)
    assert scene.condition("ModelLoaded")[:2] == ("False", want)
    assert scene.condition("Degraded")[0] == "False"


def test_a_problem_clears_by_itself() -> None:
    scene = Scene()
    scene.pods = [make_pod(engine={"state": {"waiting": {"reason": "ErrImagePull", "message": "no such host"}}})]
    scene.look()
    assert scene.condition("Ready") == (
        "False",
        "ImagePullFailed",
        "Pod chat-1: image kvik/engine:0.1.0: no such host",
    )
    assert scene.condition("Degraded")[:2] == ("True", "ImagePullFailed")
    scene.pods = [make_pod(ready=True)]
    scene.look(seconds=30)
    assert scene.condition("Ready")[:2] == ("True", "PodsReady")
    assert scene.condition("Degraded")[0] == "False"
    assert scene.cluster.condition("Ready")["lastTransitionTime"] == at(30)


def test_a_failing_pod_beside_a_ready_one_degrades_the_pool_and_leaves_it_ready() -> None:
    scene = Scene(wanted=2)
    scene.deployment = make_deployment(2, availableReplicas=1)
    scene.pods = [make_pod("a", ready=True), make_pod("b", engine=CRASH)]
    scene.look()
    assert scene.condition("Ready") == ("True", "PodsReady", "1 of 2 pods ready")
    assert scene.condition("Degraded")[:2] == ("True", "CrashLooping")
    assert scene.condition("RolloutComplete")[:2] == ("False", "CrashLooping")


def test_the_newest_pods_problem_is_told_first() -> None:
    """A user who has just changed something wants to read about that."""
    scene = Scene(wanted=1)
    image = {"state": {"waiting": {"reason": "ErrImagePull", "message": "x"}}}
    scene.pods = [make_pod("old", engine=CRASH, template_hash="older"), make_pod("new", engine=image)]
    scene.look()
    assert scene.condition("Degraded")[1] == "ImagePullFailed"


def test_the_engines_word_is_told_before_a_vaguer_one_and_counted() -> None:
    scene = Scene(wanted=3)
    lost = restarting(ended(78, "ModelNotFound: no such file"))
    scene.pods = [make_pod("a", engine=CRASH), make_pod("b", engine=lost), make_pod("c", engine=lost)]
    scene.look()
    assert scene.condition("Ready") == ("False", "ModelNotFound", "Pod b: no such file (and 1 more pods)")


@pytest.mark.parametrize(
    ("message", "want"),
    [
        ('pods "x" is forbidden: exceeded quota: compute, requested: memory=4Gi', "QuotaExceeded"),
        ('pods "x" is forbidden: violates PodSecurity "restricted:latest"', "PodsRefused"),
    ],
)
def test_pods_that_the_api_server_refuses_have_a_reason(message: str, want: str) -> None:
    scene = Scene()
    failure = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": message}
    scene.deployment = make_deployment(1, replicas=0, updatedReplicas=0, availableReplicas=0, conditions=[failure])
    scene.look()
    assert scene.condition("Ready") == ("False", want, message)


def test_a_mount_that_hangs_names_the_secret() -> None:
    scene = Scene(model={"source": "hf://o/n@r", "secretRef": {"name": "hub"}})
    stuck = make_pod(sandbox=False)
    stuck["status"]["conditions"] = [
        pod_condition("PodScheduled", True, -25),
        pod_condition("PodReadyToStartContainers", False, -25),
    ]
    scene.pods = [stuck]
    scene.look()
    assert scene.condition("Ready")[1] == "MountFailed"
    assert scene.condition("Ready")[2].endswith("it needs the Secret hub with a key token")


def test_a_child_that_could_not_be_written_has_a_reason() -> None:
    scene = Scene()
    scene.deployment = None
    scene.problems = (ApplyProblem(Reason.ACCESS_DENIED, "cannot create deployments"),)
    scene.look()
    assert scene.condition("Ready") == ("False", "AccessDenied", "cannot create deployments")
    assert scene.condition("RolloutComplete")[:2] == ("False", "AccessDenied")


def test_a_stopped_pool_says_so_and_is_not_degraded() -> None:
    scene = Scene(wanted=0, replicas=0, scaling=SCALING)
    scene.deployment = make_deployment(0)
    scene.look()
    assert scene.condition("Ready")[:2] == ("False", "Stopped")
    assert scene.condition("ModelLoaded")[:2] == ("False", "Stopped")
    assert scene.condition("ScalingActive")[:2] == ("False", "Stopped")
    assert scene.condition("RolloutComplete")[0] == "True"
    assert scene.condition("Degraded")[0] == "False"
    assert scene.cluster.status["ready"] == "0/0"


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


def test_pods_that_serve_different_commits_degrade_the_pool() -> None:
    scene = Scene(wanted=2)
    scene.pods = [make_pod("a", ready=True), make_pod("b", ready=True)]
    scene.infos = {"uid-a": info(revision="aaa"), "uid-b": info(revision="bbb")}
    scene.look()
    status, reason, message = scene.condition("Degraded")
    assert (status, reason) == ("True", "ModelDiffers")
    assert "aaa, bbb" in message


def test_a_roll_to_another_model_is_no_difference_between_pods() -> None:
    scene = Scene(wanted=2)
    scene.pods = [make_pod("new", ready=True), make_pod("old", ready=True, template_hash="older")]
    scene.infos = {"uid-new": info(revision="bbb"), "uid-old": info(revision="aaa")}
    scene.look()
    assert scene.condition("Degraded")[:2] == ("False", "AsExpected")
    assert scene.cluster.status["model"]["revision"] == "bbb"


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


def step(seconds: int, to: int) -> ScaleStep:
    return ScaleStep(NOW + timedelta(seconds=seconds), to - 1, to, "up", "kv", 180, f"60 % of full x 3 pods -> {to}")


def report(*steps: ScaleStep, **values: Any) -> ScalingReport:
    last = steps[0].time if steps else None
    defaults: dict[str, Any] = {"active": True, "reason": Reason.SCALING_ON_LOAD, "message": "60 %", "desired": 2}
    return ScalingReport(**{**defaults, **values}, last_decision=last, history=steps)


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
    raw = make_pool(status={"endpoint": "x", "conditions": [kept]})
    update = invalid_spec(KEY, raw, [], PoolError("spec.slo.ttft", "is not a duration"), NOW)
    status = merged(raw["status"], update.patch)
    assert status["endpoint"] == "x"
    by_type = {item["type"]: item for item in status["conditions"]}
    assert set(by_type) == {"Ready", "Degraded", "RolloutComplete"}
    assert by_type[ConditionType.READY]["reason"] == "InvalidSpec"
    assert by_type[ConditionType.READY]["message"] == "spec.slo.ttft: is not a duration"
    assert by_type[ConditionType.DEGRADED]["status"] == "True"
    assert [event.reason for event in update.events] == ["InvalidSpec"]


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
