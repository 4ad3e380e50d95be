"""What one engine pod is doing, and what is wrong with it, by what kubelet and scheduler wrote into its status. Pure.

A pod's own explanation (`Reason: message` in a termination message) wins over what can be said from outside.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final

from kvik_operator.counted import counted
from kvik_operator.crd.conditions import parse_timestamp
from kvik_operator.names import CONTAINER_ENGINE, CONTAINER_MODEL, ENGINE_REASONS, LABEL_TEMPLATE_HASH, Reason
from kvik_operator.reconcile.types import Object

MOUNT_PATIENCE: Final = timedelta(seconds=20)
"""A scheduled pod whose volumes and network take longer than this is said to be stuck."""
_IMAGE_REASONS: Final = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError"}
    | {"RegistryUnavailable", "SignatureValidationFailed"}
)
_CREATE_REASONS: Final = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError"})
_ENDED_BY_KUBELET: Final = frozenset({0, 137, 143})
"""Exit codes of an engine that the kubelet told to end: it obeyed, was killed, or left it to the signal."""
_KILL_DELAY: Final = timedelta(seconds=30)
"""How late a pod ends after it should have, as kubelets under load have it."""
_OWN_WORDS: Final = re.compile(r"[A-Z][a-z]+[A-Z]\w*: ")
_REASON: Final = re.compile(rf"\b({'|'.join(sorted(ENGINE_REASONS))}): (.+)$")


class Phase(StrEnum):
    """How far a pod has come. READY serves; the others do not yet, or not any more."""

    SCHEDULING = "Scheduling"
    PREPARING = "Preparing"
    FETCHING = "Fetching"
    LOADING = "Loading"
    READY = "Ready"
    UNREADY = "Unready"


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a pod does not get on, said so that a person can act."""

    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class PodState:
    name: str
    uid: str
    template_hash: str | None
    phase: Phase
    problem: Problem | None

    @property
    def ready(self) -> bool:
        return self.phase is Phase.READY


def hash_label(pod: Object) -> str | None:
    """Of a pod, or of a pod template: which rendering it is; None: not of ours."""
    value = ((pod.get("metadata") or {}).get("labels") or {}).get(LABEL_TEMPLATE_HASH)
    return None if value is None else str(value)


def live_pods(pods: Sequence[Object]) -> list[Object]:
    """Pods that count: neither terminating nor ended (an evicted pod stays listed as Failed)."""
    return [
        pod
        for pod in pods
        if "deletionTimestamp" not in pod["metadata"]
        and (pod.get("status") or {}).get("phase") not in ("Failed", "Succeeded")
    ]


def is_ending(pod: Object, now: datetime) -> bool:
    """Told to end and about to: its node will have room again. A pod whose node is lost is overdue for ever."""
    due = _time(pod["metadata"], "deletionTimestamp")
    return due is not None and now < due + _KILL_DELAY


@dataclass(frozen=True, slots=True)
class Patience:
    """What the pool grants a pod."""

    startup: timedelta
    """From the engine's start until it is ready."""
    grace: timedelta
    """From the signal to end until it is killed."""


def pod_state(pod: Object, now: datetime, patience: Patience, mounts: Sequence[str] = ()) -> PodState:
    """`mounts`: what of its namespace it cannot start without, in words."""
    metadata = pod["metadata"]
    phase = _phase(pod)
    problem = None if phase is Phase.READY else _problem(pod, phase, now, patience, mounts)
    return PodState(
        name=metadata["name"],
        uid=metadata.get("uid", ""),
        template_hash=hash_label(pod),
        phase=phase,
        problem=problem,
    )


def is_ready(pod: Object) -> bool:
    ready = pod_condition(pod, "Ready")
    return ready is not None and ready.get("status") == "True"


def pod_condition(pod: Object, type_: str) -> Object | None:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return next((condition for condition in conditions if condition.get("type") == type_), None)


def container_status(pod: Object, name: str) -> Object | None:
    return next((status for status in _container_statuses(pod) if status.get("name") == name), None)


def _container_statuses(pod: Object) -> Iterator[Object]:
    status = pod.get("status") or {}
    yield from status.get("initContainerStatuses") or ()
    yield from status.get("containerStatuses") or ()


def _phase(pod: Object) -> Phase:
    if is_ready(pod):
        return Phase.READY
    scheduled = pod_condition(pod, "PodScheduled")
    if scheduled is None or scheduled.get("status") != "True":
        return Phase.SCHEDULING
    engine, model = container_status(pod, CONTAINER_ENGINE), container_status(pod, CONTAINER_MODEL)
    running = ((engine or {}).get("state") or {}).get("running")
    if running is not None:
        return Phase.UNREADY if _was_ready(pod, running) else Phase.LOADING
    if model is not None and "running" in (model.get("state") or {}):
        return Phase.FETCHING
    return Phase.PREPARING


def _was_ready(pod: Object, run: Object) -> bool:
    """Since this run of a container started: its Ready condition fell after that, instead of being false all along."""
    fell, started = _time(pod_condition(pod, "Ready") or {}, "lastTransitionTime"), _time(run, "startedAt")
    return fell is not None and started is not None and fell > started


def _problem(pod: Object, phase: Phase, now: datetime, patience: Patience, mounts: Sequence[str]) -> Problem | None:
    """The first of these that holds; None while the pod is just on its way."""
    name = pod["metadata"]["name"]
    if phase is Phase.SCHEDULING:
        return _unscheduled(pod, name)
    if _node_is_lost(pod):
        node = (pod.get("spec") or {}).get("nodeName")
        return Problem(Reason.NODE_LOST, f"Pod {name}: its node{f' {node}' if node else ''} no longer answers")
    if phase is Phase.UNREADY:
        # It was ready since it started last: why it ended before that, however long ago, is no reason any more.
        return Problem(Reason.PODS_NOT_READY, f"Pod {name}: the engine was ready and no longer answers /ready")
    for status in _container_statuses(pod):
        problem = _container_problem(pod, status, patience)
        if problem is not None:
            return problem
    return _stuck(pod, name, now, mounts) if phase is Phase.PREPARING else None


def _node_is_lost(pod: Object) -> bool:
    """Kubernetes' node controller takes a pod's readiness away, without a word; its kubelet still had all containers
    ready. A pod that a readiness gate holds back looks alike, but says so.
    """
    ready, containers = pod_condition(pod, "Ready") or {}, pod_condition(pod, "ContainersReady") or {}
    untold = ready.get("status") == "False" and not ready.get("reason") and containers.get("status") == "True"
    return untold or (pod.get("status") or {}).get("phase") == "Unknown"


def _unscheduled(pod: Object, name: str) -> Problem | None:
    scheduled = pod_condition(pod, "PodScheduled")
    if scheduled is None or scheduled.get("reason") not in ("Unschedulable", "SchedulingGated"):
        return None
    return Problem(Reason.UNSCHEDULABLE, f"Pod {name}: {scheduled.get('message') or 'no node fits'}")


def _container_problem(pod: Object, status: Object, patience: Patience) -> Problem | None:
    state = status.get("state") or {}
    waiting = state.get("waiting") or {}
    why, detail = waiting.get("reason"), waiting.get("message") or ""
    where = f"Pod {pod['metadata']['name']}"
    if why in _IMAGE_REASONS:
        return Problem(Reason.IMAGE_PULL_FAILED, f"{where}: image {status.get('image')}: {detail or why}")
    if why in _CREATE_REASONS:
        return Problem(Reason.CONTAINER_NOT_CREATED, f"{where}, container {status.get('name')}: {why}: {detail}")
    ended = state.get("terminated") or (status.get("lastState") or {}).get("terminated")
    if ended is None:
        return None
    if status.get("name") == CONTAINER_ENGINE and not status.get("started") and _timed_out(pod, ended, patience):
        times = counted(status.get("restartCount", 0), "time")
        text = f"{where}, container {CONTAINER_ENGINE}: not ready within startup.timeout, restarted {times}"
        return Problem(Reason.STARTUP_TIMED_OUT, text)
    if ended.get("exitCode") == 0 and why != "CrashLoopBackOff":
        return None
    return _exit_problem(ended, status, where)


def _timed_out(pod: Object, ended: Object, patience: Patience) -> bool:
    """Whether this run was ended by the startup probe: by the kubelet, about then, and without having been ready.

    A crash or a liveness probe ends a run as well, any time later, and so does an engine that gives up by itself.
    """
    words = (ended.get("message") or "").strip().rsplit("\n", 1)[-1]
    ran, latest = _ran(ended), patience.startup + patience.grace + _KILL_DELAY
    by_kubelet = ended.get("exitCode") in _ENDED_BY_KUBELET and ended.get("reason") != "OOMKilled"
    in_time = patience.startup * 0.9 <= ran <= latest
    return by_kubelet and in_time and not _OWN_WORDS.match(words) and not _was_ready(pod, ended)


def _exit_problem(ended: Object, status: Object, where: str) -> Problem:
    """Why a container ended with an error, in its own words where it left any."""
    container = f"{where}, container {status.get('name')}"
    own = engine_reason(ended.get("message") or "")
    if own is not None:
        return Problem(own[0], f"{where}: {own[1]}")
    if ended.get("reason") == "OOMKilled":
        return Problem(Reason.OUT_OF_MEMORY, f"{container}: killed for using more than its memory limit")
    restarts = status.get("restartCount", 0)
    last_words = (ended.get("message") or "").strip().rsplit("\n", 1)[-1]
    text = f"{container}: exit code {ended.get('exitCode')}, restarted {counted(restarts, 'time')}"
    return Problem(Reason.CRASH_LOOPING, f"{text}: {last_words}" if last_words else text)


def engine_reason(message: str) -> tuple[Reason, str] | None:
    """The last line of a termination message of the form `Reason: text` with a reason we know.

    The message may be the tail of a log (terminationMessagePolicy FallbackToLogsOnError), so anything may stand around.
    """
    for line in reversed(message.splitlines()):
        match = _REASON.search(line.strip())
        if match is not None:
            return Reason(match.group(1)), match.group(2)
    return None


def _stuck(pod: Object, name: str, now: datetime, mounts: Sequence[str]) -> Problem | None:
    """A pod with a node whose sandbox is not up yet: usually a volume, Secret or claim that cannot be mounted."""
    scheduled, sandbox = pod_condition(pod, "PodScheduled"), pod_condition(pod, "PodReadyToStartContainers")
    if scheduled is None or sandbox is None or sandbox.get("status") == "True":
        return None
    since = _time(scheduled, "lastTransitionTime")
    if since is None or now - since < MOUNT_PATIENCE:
        return None
    patience = int(MOUNT_PATIENCE.total_seconds())
    text = f"Pod {name}: has a node for more than {patience} s and still no volumes or network"
    needs = f"; it needs {', '.join(mounts)}" if mounts else ""
    return Problem(Reason.MOUNT_FAILED, f"{text}{needs}: kubectl describe pod {name}")


def _ran(ended: Mapping[str, Any]) -> timedelta:
    started, finished = _time(ended, "startedAt"), _time(ended, "finishedAt")
    return finished - started if started is not None and finished is not None else timedelta()


def _time(value: Mapping[str, Any], field: str) -> datetime | None:
    text = value.get(field)
    return parse_timestamp(text) if text else None
