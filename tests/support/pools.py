"""InferencePools, their pods and their Deployment as the API server would show them, for tests of the operator."""

from collections.abc import Mapping
from copy import deepcopy
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from kvik_operator.crd.inferencepool import PoolSpec
from kvik_operator.names import LABEL_POOL, LABEL_TEMPLATE_HASH, ChildKind, PoolKey
from kvik_operator.objects.scaled_object import KedaTrigger

NOW = datetime(2026, 5, 1, 12, 0, 0, tzinfo=UTC)
KEY = PoolKey("demo", "chat")
UID = "11111111-1111-1111-1111-111111111111"
SOURCE = "file:///models/smollm2/model.gguf"
TEMPLATE_HASH = "abcdef0123456789"

Object = dict[str, Any]


def at(seconds: float) -> str:
    """RFC 3339, so many seconds after NOW (before it, when negative)."""
    return (NOW + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


def spec_of(**groups: Any) -> PoolSpec:
    """A spec with the groups given in the API's own shape: `spec_of(slo={"class": "Batch"})`."""
    return msgspec.convert({"model": {"source": SOURCE}, **groups}, PoolSpec)


TRIGGER = KedaTrigger("kvik-operator.kvik-system.svc:9443", "kvik-operator")


def with_every_child(kind: ChildKind | None = None) -> dict[str, Any]:
    """Groups of a spec whose pool has every kind of child that one can have at once, `kind` among them."""
    driver = "KEDA" if kind is ChildKind.SCALED_OBJECT else "HPA"
    return {"scaling": {"maxReplicas": 4, "driver": driver}}


def make_pool(*, generation: int = 1, status: Mapping[str, Any] | None = None, **groups: Any) -> Object:
    pool: Object = {
        "apiVersion": "kvik.dev/v1alpha1",
        "kind": "InferencePool",
        "metadata": {
            "name": KEY.name,
            "namespace": KEY.namespace,
            "uid": UID,
            "generation": generation,
            "resourceVersion": "100",
        },
        "spec": {"model": {"source": SOURCE}, **groups},
    }
    if status is not None:
        pool["status"] = dict(status)
    return pool


def make_pod(
    name: str = "chat-1",
    *,
    ready: bool = False,
    engine: Mapping[str, Any] | None = None,
    model: Mapping[str, Any] | None = None,
    scheduled: bool = True,
    sandbox: bool = True,
    template_hash: str = TEMPLATE_HASH,
    was_ready: bool = False,
    age: float = 10,
) -> Object:
    """A pod whose engine started seven seconds ago. `engine` and `model` are over their statuses."""
    pod: Object = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": KEY.namespace,
            "uid": f"uid-{name}",
            "creationTimestamp": at(-age),
            "labels": {LABEL_POOL: KEY.name, LABEL_TEMPLATE_HASH: template_hash},
        },
        "status": {
            "phase": "Running" if scheduled else "Pending",
            "conditions": [
                pod_condition("PodScheduled", scheduled, 1 - age),
                pod_condition("PodReadyToStartContainers", sandbox, 2 - age),
                pod_condition("Ready", ready, -1 if ready or was_ready else -age),
            ],
        },
    }
    if scheduled and sandbox:
        running = {"running": {"startedAt": at(-7)}}
        status = {"name": "engine", "image": "kvik/engine:0.1.0", "restartCount": 0, "ready": ready, "started": ready}
        pod["status"]["containerStatuses"] = [{**status, "state": running, **(engine or {})}]
        if model is not None:
            fetch = {"name": "model", "image": "kvik/engine:0.1.0", "restartCount": 0, "ready": False, **model}
            pod["status"]["initContainerStatuses"] = [fetch]
            if "terminated" not in fetch.get("state", {}):
                pod["status"]["containerStatuses"][0]["state"] = {"waiting": {"reason": "PodInitializing"}}
    return pod


def pod_condition(type_: str, holds: bool, seconds: float, **more: str) -> Object:
    return {"type": type_, "status": "True" if holds else "False", "lastTransitionTime": at(seconds), **more}


def ended(exit_code: int = 1, message: str = "", reason: str = "Error", ran: float = 5) -> Object:
    """The `terminated` state of a container that ran so many seconds, until a second ago."""
    return {
        "exitCode": exit_code,
        "reason": reason,
        "message": message,
        "startedAt": at(-1 - ran),
        "finishedAt": at(-1),
    }


def restarting(ended_state: Mapping[str, Any], restarts: int = 1) -> Object:
    """A container in its crash back-off."""
    return {
        "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s restarting failed container"}},
        "lastState": {"terminated": dict(ended_state)},
        "restartCount": restarts,
        "ready": False,
        "started": False,
    }


def make_deployment(replicas: int = 1, /, **status: Any) -> Object:
    """A Deployment whose rollout is complete, but for the fields of `status`."""
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": KEY.name, "namespace": KEY.namespace, "uid": "uid-deployment", "generation": 1},
        "spec": {
            "replicas": replicas,
            "template": {"metadata": {"labels": {LABEL_TEMPLATE_HASH: TEMPLATE_HASH}}},
        },
        "status": {
            "observedGeneration": 1,
            "replicas": replicas,
            "updatedReplicas": replicas,
            "availableReplicas": replicas,
            **status,
        },
    }


def unschedulable(name: str, message: str, for_seconds: float = 9, template_hash: str = TEMPLATE_HASH) -> Object:
    """A pod that the scheduler has found no node for, for so long."""
    pod = make_pod(name, scheduled=False, template_hash=template_hash)
    waits = pod_condition("PodScheduled", False, -for_seconds, reason="Unschedulable", message=message)
    pod["status"]["conditions"] = [waits]
    return pod


def terminating(obj: Mapping[str, Any], overdue: float = 0) -> Object:
    """It should have ended so many seconds ago."""
    gone: Object = deepcopy(dict(obj))
    gone["metadata"]["deletionTimestamp"] = at(-overdue)
    return gone
