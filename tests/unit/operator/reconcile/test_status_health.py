"""Ready, ModelLoaded and Degraded: what a user reads when pods start, fail, disagree or are stopped."""

from typing import Any

import pytest

from kvik_operator.names import Reason
from kvik_operator.reconcile.types import ApplyProblem
from tests.support.pools import (
    at,
    ended,
    make_deployment,
    make_pod,
    pod_condition,
    restarting,
    unschedulable,
)
from tests.support.status_scene import Scene, info

SCALING = {"maxReplicas": 4}
CRASH = restarting(ended(1, "RuntimeError: boom"))


def test_a_pool_is_never_ready_with_no_ready_pod() -> None:
    """kserve #1859: Ready=True while every pod crash-looped."""
    scene = Scene()
    scene.pods = [make_pod(engine=CRASH)]
    scene.look()
    assert scene.condition("Ready")[:2] == ("False", "CrashLooping")
    assert scene.cluster.status["ready"] == "0/1"


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
    lost = restarting(ended(78, "ModelInvalid: truncated"))
    scene.pods = [make_pod("a", engine=CRASH), make_pod("b", engine=lost), make_pod("c", engine=lost)]
    scene.look()
    assert scene.condition("Ready") == ("False", "ModelInvalid", "Pod b: truncated (and 1 more pod)")
    scene.pods.append(make_pod("d", engine=lost))
    scene.look()
    assert scene.condition("Ready")[2] == "Pod b: truncated (and 2 more pods)"


@pytest.mark.parametrize(
    ("source", "place", "others"),
    [
        ("file:///models/x.gguf", "a path in the engine image", "hf://ORG/NAME@REV[#FILE.gguf] or pvc://CLAIM/PATH"),
        ("pvc://a/x", "a path in a PersistentVolumeClaim", "hf://ORG/NAME@REV[#FILE.gguf] or file:///models/PATH"),
        ("hf://o/n@r", "a repository of a model hub", "pvc://CLAIM/PATH or file:///models/PATH"),
    ],
)
def test_a_model_that_is_not_found_is_told_by_the_pools_own_source(source: str, place: str, others: str) -> None:
    """The engine knows the path that it was given, and sources that a pool does not have."""
    scene = Scene(model={"source": source})
    scene.pods = [make_pod(engine=restarting(ended(78, "ModelNotFound: /models/claim/x does not exist")))]
    scene.look()
    words = f"spec.model.source {source} is {place}; a model may also be {others}"
    assert scene.condition("Ready")[2] == f"Pod chat-1: /models/claim/x does not exist; {words}"


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


def refused_for(message: str) -> dict[str, Any]:
    """A Deployment none of whose pods the API server takes."""
    failure = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": message}
    return make_deployment(1, replicas=0, updatedReplicas=0, availableReplicas=0, conditions=[failure])


def lost_node() -> dict[str, Any]:
    pod = make_pod(engine={"started": True, "ready": True}, was_ready=True)
    pod["status"]["conditions"].append(pod_condition("ContainersReady", True, -5))
    return pod


CAUSES: dict[str, dict[str, Any]] = {
    "ImagePullFailed": {"pods": [make_pod(engine={"state": {"waiting": {"reason": "ImagePullBackOff"}}})]},
    "QuotaExceeded": {"deployment": refused_for('pods "x" is forbidden: exceeded quota: compute')},
    "Unschedulable": {"pods": [unschedulable("chat-1", "0/1 nodes are available: 1 Insufficient memory.")]},
    "CrashLooping": {"pods": [make_pod(engine=CRASH)]},
    "DigestMismatch": {"pods": [make_pod(model={"state": {"terminated": ended(78, "DigestMismatch: want a")}})]},
    "AccessDenied": {"problems": (ApplyProblem(Reason.ACCESS_DENIED, "cannot create deployments"),)},
    "NodeLost": {"pods": [lost_node()]},
}


@pytest.mark.parametrize("reason", CAUSES)
def test_each_cause_has_a_reason_of_its_own_and_goes_at_the_first_look_without_it(reason: str) -> None:
    scene = Scene()
    for name, value in CAUSES[reason].items():
        setattr(scene, name, value)
    scene.look()
    assert scene.condition("Ready")[:2] == ("False", reason)
    assert scene.condition("Degraded")[:2] == ("True", reason)
    scene.pods, scene.problems, scene.deployment = [make_pod(ready=True)], (), make_deployment(1)
    assert scene.look(seconds=1).significant
    for type_, want in (("Ready", "True"), ("Degraded", "False"), ("RolloutComplete", "True")):
        assert scene.condition(type_)[0] == want


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


def test_pods_that_cannot_use_the_new_api_keys_degrade_the_pool_until_they_can() -> None:
    scene = Scene(wanted=2, apiKeys={"secretRef": {"name": "clients"}})
    scene.pods = [make_pod("a", ready=True), make_pod("b", ready=True)]
    scene.outdated_keys = {"uid-a", "uid-b", "uid-of-a-pod-that-is-gone"}
    scene.look()
    status, reason, message = scene.condition("Degraded")
    assert (status, reason) == ("True", "APIKeysOutdated")
    assert message.startswith("Pod a and 1 more pod cannot use key keys of the Secret clients")
    assert scene.condition("Ready")[0] == "True"
    scene.outdated_keys = {"uid-b"}
    scene.look()
    assert scene.condition("Degraded")[2].startswith("Pod b cannot")
    scene.outdated_keys.clear()
    scene.look()
    assert scene.condition("Degraded")[:2] == ("False", "AsExpected")


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
