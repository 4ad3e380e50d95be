"""What is wrong with a pod, from statuses as kubelet and scheduler write them."""

from datetime import timedelta
from typing import Any

import pytest

from kvik_operator.names import Reason
from kvik_operator.reconcile.pod_state import Patience, Phase, PodState, engine_reason, live_pods, pod_state
from tests.support.pools import NOW, at, ended, make_pod, pod_condition, restarting, terminating, unschedulable

PATIENCE = Patience(startup=timedelta(seconds=120), grace=timedelta(seconds=45))


def state_of(pod: dict[str, Any]) -> PodState:
    return pod_state(pod, NOW, PATIENCE)


def problem_of(pod: dict[str, Any]) -> tuple[Reason, str]:
    problem = state_of(pod).problem
    assert problem is not None
    return problem.reason, problem.message


@pytest.mark.parametrize(
    ("pod", "want"),
    [
        (make_pod(scheduled=False), Phase.SCHEDULING),
        (make_pod(sandbox=False), Phase.PREPARING),
        (make_pod(engine={"state": {"waiting": {"reason": "ContainerCreating"}}}), Phase.PREPARING),
        (make_pod(model={"state": {"running": {"startedAt": at(-5)}}}), Phase.FETCHING),
        (make_pod(), Phase.LOADING),
        (make_pod(ready=True), Phase.READY),
    ],
)
def test_a_pod_on_its_way_has_a_phase_and_no_problem(pod: dict[str, Any], want: Phase) -> None:
    state = state_of(pod)
    assert (state.phase, state.problem) == (want, None)


def test_a_pod_without_any_status_is_being_scheduled() -> None:
    pod = make_pod()
    del pod["status"]
    assert state_of(pod).phase is Phase.SCHEDULING


def test_an_unschedulable_pod_tells_what_the_scheduler_said() -> None:
    reason, message = problem_of(unschedulable("chat-1", "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."))
    assert reason is Reason.UNSCHEDULABLE
    assert message == "Pod chat-1: 0/3 nodes are available: 3 Insufficient nvidia.com/gpu."


@pytest.mark.parametrize("why", ["ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"])
def test_an_image_that_cannot_be_pulled_is_named(why: str) -> None:
    waiting = {"state": {"waiting": {"reason": why, "message": "manifest unknown"}}}
    reason, message = problem_of(make_pod(engine=waiting))
    assert reason is Reason.IMAGE_PULL_FAILED
    assert message == "Pod chat-1: image kvik/engine:0.1.0: manifest unknown"


def test_an_image_of_the_fetching_container_counts_too() -> None:
    waiting = {"state": {"waiting": {"reason": "ErrImagePull"}}}
    assert problem_of(make_pod(model=waiting))[0] is Reason.IMAGE_PULL_FAILED


def test_a_container_that_cannot_be_created_says_why() -> None:
    waiting = {"state": {"waiting": {"reason": "CreateContainerConfigError", "message": 'secret "x" not found'}}}
    reason, message = problem_of(make_pod(engine=waiting))
    assert reason is Reason.CONTAINER_NOT_CREATED
    assert 'secret "x" not found' in message


@pytest.mark.parametrize(
    ("line", "want"),
    [
        ("AcceleratorNotVisible: no CUDA device", Reason.ACCELERATOR_NOT_VISIBLE),
        ("InsufficientMemory: needs 3 GiB", Reason.INSUFFICIENT_MEMORY),
        ("ModelNotFound: /models/x does not exist", Reason.MODEL_NOT_FOUND),
        ("DigestMismatch: want sha256:1, got sha256:2", Reason.DIGEST_MISMATCH),
        ("CoreFailed: died three times", Reason.CORE_FAILED),
    ],
)
def test_the_engines_own_reason_wins_over_crash_looping(line: str, want: Reason) -> None:
    reason, message = problem_of(make_pod(engine=restarting(ended(78, line))))
    assert reason is want
    assert message == f"Pod chat-1: {line.split(': ', 1)[1]}"


@pytest.mark.parametrize("container", ["engine", "model"])
def test_the_first_end_of_a_container_is_told_before_any_restart(container: str) -> None:
    """A loader that fails must not wait for its back-off to be heard of."""
    first: dict[str, Any] = {"state": {"terminated": ended(78, "DigestMismatch: want sha256:1, got sha256:2")}}
    assert problem_of(make_pod(**{container: first}))[0] is Reason.DIGEST_MISMATCH


def lost(ready: dict[str, Any], **status: str) -> dict[str, Any]:
    """All containers were ready when the kubelet was last heard of."""
    pod = make_pod(engine={"started": True, "ready": True}, was_ready=True)
    conditions = [one for one in pod["status"]["conditions"] if one["type"] != "Ready"]
    pod["status"] |= {"conditions": [*conditions, pod_condition("ContainersReady", True, -5), ready], **status}
    pod["spec"] = {"nodeName": "node-7"}
    return pod


def test_a_pod_whose_node_no_longer_answers_names_it() -> None:
    """As the node controller leaves it: Ready is taken away, and all that the kubelet said stays."""
    reason, message = problem_of(lost(pod_condition("Ready", False, -1)))
    assert (reason, message) == (Reason.NODE_LOST, "Pod chat-1: its node node-7 no longer answers")
    assert problem_of(lost(pod_condition("Ready", False, -1), phase="Unknown"))[0] is Reason.NODE_LOST


def test_a_pod_that_a_readiness_gate_holds_back_has_its_node() -> None:
    """A load balancer's controller may add gates to any pod."""
    gated = pod_condition("Ready", False, -1, reason="ReadinessGatesNotReady")
    assert problem_of(lost(gated))[0] is Reason.PODS_NOT_READY


def test_the_fetching_containers_reason_is_found_too() -> None:
    failed = restarting(ended(78, "DownloadDenied: 401 from the hub for org/name"))
    assert problem_of(make_pod(model=failed))[0] is Reason.DOWNLOAD_DENIED


def test_a_crash_shows_its_exit_code_and_last_words() -> None:
    log = "Traceback (most recent call last):\n  File x\nRuntimeError: boom\n"
    reason, message = problem_of(make_pod(engine=restarting(ended(1, log), restarts=4)))
    assert reason is Reason.CRASH_LOOPING
    assert message == "Pod chat-1, container engine: exit code 1, restarted 4 times: RuntimeError: boom"
    _, once = problem_of(make_pod(engine=restarting(ended(1, log), restarts=1)))
    assert once == "Pod chat-1, container engine: exit code 1, restarted 1 time: RuntimeError: boom"


def test_an_engine_that_ends_again_and_again_without_an_error_is_a_crash_too() -> None:
    reason, message = problem_of(make_pod(engine=restarting(ended(0, reason="Completed"), restarts=3)))
    assert reason is Reason.CRASH_LOOPING
    assert "exit code 0, restarted 3 times" in message


def test_a_pod_killed_for_memory_says_so() -> None:
    reason, message = problem_of(make_pod(engine=restarting(ended(137, reason="OOMKilled"))))
    assert reason is Reason.OUT_OF_MEMORY
    assert "memory limit" in message


@pytest.mark.parametrize("again", [{}, {"state": {"running": {"startedAt": at(-0.5)}}}], ids=["waits", "loads again"])
@pytest.mark.parametrize(("exit_code", "ran"), [(137, 121), (143, 119), (0, 130), (137, 166)])
def test_a_pod_ended_by_its_startup_probe_says_so(exit_code: int, ran: float, again: dict[str, Any]) -> None:
    """An engine that is told to end before it is ready may well obey and exit 0."""
    reason, message = problem_of(make_pod(engine=restarting(ended(exit_code, ran=ran)) | again, age=ran + 10))
    assert reason is Reason.STARTUP_TIMED_OUT
    assert "startup.timeout" in message


@pytest.mark.parametrize(
    ("last", "want"),
    [
        (ended(139, ran=3 * 3600), "exit code 139"),
        (ended(137, ran=3 * 3600), "exit code 137"),
        (ended(139, ran=121), "exit code 139"),
        (ended(1, "ApiFailed: the API process died three times", ran=121), "ApiFailed: the API process died"),
        (ended(137, "log\nApiFailed: the API process died", ran=121), "ApiFailed: the API process died"),
        (ended(1, "RuntimeError: boom", ran=121), "RuntimeError: boom"),
    ],
)
def test_a_crash_is_none_of_the_startup_probes_however_long_it_took(last: dict[str, Any], want: str) -> None:
    reason, message = problem_of(make_pod(engine=restarting(last), age=1e5))
    assert reason is Reason.CRASH_LOOPING
    assert want in message


def test_a_run_that_was_ready_did_not_time_out_before() -> None:
    """With a short startup.timeout a liveness probe ends it about then too."""
    pod = make_pod(engine=restarting(ended(137, ran=121)), was_ready=True, age=1e5)
    assert problem_of(pod)[0] is Reason.CRASH_LOOPING


def test_a_pod_that_served_for_days_is_not_blamed_on_its_crash_of_last_week() -> None:
    before = {"lastState": {"terminated": ended(137, reason="OOMKilled")}, "restartCount": 1, "started": True}
    assert problem_of(make_pod(engine=before, was_ready=True))[0] is Reason.PODS_NOT_READY


def test_a_restarted_engine_keeps_its_problem_while_it_loads_again() -> None:
    """Else the condition would flap with every restart."""
    running_again = {
        "lastState": {"terminated": ended(1, "ModelInvalid: truncated")},
        "restartCount": 2,
        "started": False,
    }
    assert problem_of(make_pod(engine=running_again))[0] is Reason.MODEL_INVALID


def test_a_restarted_engine_that_is_ready_again_has_no_problem() -> None:
    again = {"lastState": {"terminated": ended(137, reason="OOMKilled")}, "restartCount": 1}
    assert state_of(make_pod(ready=True, engine=again)).problem is None


def test_a_finished_fetch_is_no_problem() -> None:
    done = {"state": {"terminated": ended(0, reason="Completed")}}
    assert state_of(make_pod(model=done)).problem is None


def test_an_engine_that_was_ready_and_is_not_any_more_is_a_problem() -> None:
    reason, _ = problem_of(make_pod(engine={"started": True}, was_ready=True))
    assert reason is Reason.PODS_NOT_READY


def test_an_engine_between_its_startup_and_its_first_readiness_probe_is_no_problem() -> None:
    """`started` is true a moment before the pod is ready for the first time."""
    state = state_of(make_pod(engine={"started": True}))
    assert (state.phase, state.problem) == (Phase.LOADING, None)


@pytest.mark.parametrize(("seconds", "stuck"), [(-10, False), (-25, True)])
def test_a_pod_without_volumes_for_long_is_stuck(seconds: int, stuck: bool) -> None:
    pod = make_pod(sandbox=False)
    pod["status"]["conditions"] = [
        pod_condition("PodScheduled", True, seconds),
        pod_condition("PodReadyToStartContainers", False, seconds),
    ]
    problem = state_of(pod).problem
    assert (problem is not None) is stuck
    if problem is not None:
        assert problem.reason is Reason.MOUNT_FAILED
        assert "kubectl describe pod chat-1" in problem.message


def test_a_pod_that_cannot_mount_is_told_with_what_it_waits_for() -> None:
    """A Secret that is missing looks like a volume plug-in that is slow; nobody may read Secrets to tell them apart."""
    pod = make_pod(sandbox=False, age=60)
    needs = ["PersistentVolumeClaim models", "Secret clients with the key keys"]
    problem = pod_state(pod, NOW, PATIENCE, needs).problem
    assert problem is not None
    assert problem.message.endswith(
        "no volumes or network; it needs PersistentVolumeClaim models, Secret clients with the key keys: "
        "kubectl describe pod chat-1"
    )


def test_terminating_and_ended_pods_do_not_count() -> None:
    evicted = make_pod("evicted")
    evicted["status"]["phase"] = "Failed"
    assert [pod["metadata"]["name"] for pod in live_pods([make_pod(), terminating(make_pod("old")), evicted])] == [
        "chat-1"
    ]


@pytest.mark.parametrize(
    ("message", "want"),
    [
        ("ModelNotFound: gone", (Reason.MODEL_NOT_FOUND, "gone")),
        ("some log\n2026-05-01 ERROR ModelNotFound: gone\n\n", (Reason.MODEL_NOT_FOUND, "gone")),
        ("ModelNotFound: first\nDigestMismatch: last", (Reason.DIGEST_MISMATCH, "last")),
        (
            "DownloadFailed: org/name@main: ConnectError: [Errno -3] resolution",
            (Reason.DOWNLOAD_FAILED, "org/name@main: ConnectError: [Errno -3] resolution"),
        ),
        ("RuntimeError: boom", None),
        ("PodsReady: a good reason is none of an engine's", None),
        ("", None),
    ],
)
def test_a_reason_line_is_found_anywhere_in_a_log_tail(message: str, want: tuple[Reason, str] | None) -> None:
    assert engine_reason(message) == want
