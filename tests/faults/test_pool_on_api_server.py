"""Pools on a real API server, by an operator with the chart's rights. Pods never run here: their status is played."""

import json
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvik_operator.names import ANNOTATION_TRY_AGAIN
from tests.support.control_plane import RunningControlPlane, control_plane
from tests.support.kubectl import Kubectl, condition, wait_for
from tests.support.looked_at import wait_for_a_look
from tests.support.operator_process import OperatorProcess
from tests.support.operator_rig import COLLECTED_WITHIN
from tests.support.running_operator import NAME, NAMESPACE, helm, install, running_operator

pytestmark = pytest.mark.timeout(600)

ROOT = Path(__file__).resolve().parents[2]
POOLS = "inferencepools.kvik.dev"
CHILDREN = "deployments,services,serviceaccounts,poddisruptionbudgets,networkpolicies"
TOLD_WITHIN = 30
"""Seconds until a pool must say what is wrong with it."""
MENDED_WITHIN = 60
"""Seconds until a pool must have got over it; Kubernetes' own controllers have back-offs of their own."""
EXAMPLES: dict[str, Any] = {
    path.stem: document
    for path in sorted((ROOT / "examples").glob("*.yaml"))
    if (document := yaml.safe_load(path.read_text())).get("kind") == "InferencePool"
}
SPEC: dict[str, Any] = {
    "model": {"source": "file:///models/smollm2/model.gguf"},
    "resources": {"device": "CPU"},
}
KEYED: dict[str, Any] = {"apiKeys": {"secretRef": {"name": "clients"}}}


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningControlPlane]:
    with control_plane(tmp_path_factory.mktemp("plane")) as running:
        install(running)
        yield running


@pytest.fixture(scope="module")
def operator(plane: RunningControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OperatorProcess]:
    with running_operator(plane, tmp_path_factory.mktemp("operator")) as running:
        yield running
        assert bugs(running) == []


def bugs(operator: OperatorProcess) -> list[Any]:
    """What the operator logged as its own fault."""
    return [line for line in operator.log_lines() if "this is a bug" in line["message"]]


@pytest.fixture
def kube(plane: RunningControlPlane, operator: OperatorProcess) -> Kubectl:
    """A namespace of the test's own, which takes only restricted pods."""
    name = f"t-{uuid.uuid4().hex[:8]}"
    cluster = Kubectl(plane.kubectl, plane.kubeconfig, name)
    cluster.run("create", "namespace", name)
    cluster.run("label", "namespace", name, "pod-security.kubernetes.io/enforce=restricted")
    return cluster


def apply_pool(kube: Kubectl, name: str = "chat", **spec: Any) -> None:
    pool = {
        "apiVersion": "kvik.dev/v1alpha1",
        "kind": "InferencePool",
        "metadata": {"name": name},
        "spec": {**SPEC, **spec},
    }
    kube.apply(json.dumps(pool))


def wait_for_reason(
    kube: Kubectl, reason: str, type_: str = "Ready", name: str = "chat", seconds: float = TOLD_WITHIN
) -> Mapping[str, str]:
    def told() -> Mapping[str, str] | None:
        found = condition(kube.get(POOLS, name), type_)
        return found if found is not None and found["reason"] == reason else None

    return wait_for(f"{type_} with reason {reason}", told, seconds, lambda: str(kube.get(POOLS, name)))


def wait_for_pod(kube: Kubectl) -> str:
    def pod() -> str | None:
        pods = kube.list("pods", "kvik.dev/pool=chat")
        return pods[0]["metadata"]["name"] if pods else None

    return wait_for("a pod", pod, TOLD_WITHIN)


def play(kube: Kubectl, pod: str, state: Mapping[str, Any], *, ready: bool = False) -> None:
    """Give a pod the status that a kubelet would write."""
    status = {
        "phase": "Running",
        "podIP": "127.0.0.1",
        "conditions": [
            {"type": kind, "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
            for kind in ("PodScheduled", "PodReadyToStartContainers", "Initialized")
        ]
        + [
            {"type": kind, "status": str(ready), "lastTransitionTime": "2026-01-01T00:00:00Z"}
            for kind in ("ContainersReady", "Ready")
        ],
        "containerStatuses": [
            {
                "name": "engine",
                "image": "kvik.test/engine:0.1.0-cpu",
                "imageID": "",
                "ready": ready,
                "started": ready,
                "restartCount": 0,
                **state,
            }
        ],
    }
    patch = json.dumps({"status": status})
    kube.run("patch", "pod", pod, "--subresource=status", "--type=merge", f"--patch={patch}")


RUNNING: dict[str, Any] = {"state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}


def test_a_pool_gets_its_children_and_its_pod_is_restricted(kube: Kubectl) -> None:
    apply_pool(kube)
    wait_for_pod(kube)
    kinds = {item["kind"] for item in kube.list(CHILDREN, "kvik.dev/pool=chat")}
    assert kinds == {"Deployment", "Service", "ServiceAccount", "PodDisruptionBudget", "NetworkPolicy"}
    wait_for_reason(kube, "Starting")


def written_by_operator(kube: Kubectl) -> dict[str, list[Mapping[str, Any]]]:
    """When and what it wrote last of each child: Kubernetes' own controllers write too, whenever they like."""
    found = kube.run("get", CHILDREN, "--selector=kvik.dev/pool=chat", "--output=json", "--show-managed-fields")
    return {
        item["kind"]: [entry for entry in item["metadata"]["managedFields"] if entry["manager"] == "kvik-operator"]
        for item in json.loads(found)["items"]
    }


def test_a_settled_pool_is_not_written_again(kube: Kubectl) -> None:
    """What the API server fills in must not look like drift, else every look would write."""
    cache = {"size": 268435456, "swapSpace": "1Gi", "diskCache": {"size": "1.7G"}}
    apply_pool(kube, template={"env": [{"name": "A", "value": "b"}]}, kvCache=cache, **KEYED)
    play(kube, wait_for_pod(kube), RUNNING, ready=True)
    wait_for_reason(kube, "PodsReady")
    wait_for_reason(kube, "RolloutComplete", "RolloutComplete")

    before = written_by_operator(kube)
    assert len(before) == 5
    assert all(before.values())
    wait_for_a_look(kube, "chat")
    assert written_by_operator(kube) == before


def test_a_secret_of_keys_that_is_missing_is_named_and_with_it_the_pool_is_ready(kube: Kubectl) -> None:
    """The namespace takes only restricted pods, and the operator may not read Secrets."""
    apply_pool(kube, kvCache={"swapSpace": "1Gi", "diskCache": {"size": "9Gi"}}, **KEYED)
    pod = wait_for_pod(kube)
    no_volumes = {"type": "PodReadyToStartContainers", "status": "False", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    scheduled = {**no_volumes, "type": "PodScheduled", "status": "True"}
    status = json.dumps({"status": {"phase": "Pending", "conditions": [scheduled, no_volumes]}})
    kube.run("patch", "pod", pod, "--subresource=status", "--type=merge", f"--patch={status}")
    assert "it needs Secret clients with the key keys" in wait_for_reason(kube, "MountFailed")["message"]
    play(kube, pod, RUNNING, ready=True)
    wait_for_reason(kube, "PodsReady")
    shown = (kube.get(POOLS, "chat") or {})["status"]["effective"]
    assert shown["apiKeys"] == {"secretRef": {"name": "clients", "key": "keys"}}
    assert (shown["kvCache"]["diskCache"], shown["batching"]["admission"]) == ({"size": "9Gi"}, "Queue")


STATES: dict[str, tuple[dict[str, Any], str]] = {
    "image": ({"state": {"waiting": {"reason": "ImagePullBackOff", "message": "not found"}}}, "ImagePullFailed"),
    "crash": (
        {
            "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}},
            "lastState": {"terminated": {"exitCode": 1, "reason": "Error", "message": "boom"}},
            "restartCount": 3,
        },
        "CrashLooping",
    ),
    "model": (
        {
            "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}},
            "lastState": {"terminated": {"exitCode": 78, "reason": "Error", "message": "ModelNotFound: no file"}},
            "restartCount": 3,
        },
        "ModelNotFound",
    ),
}


@pytest.mark.parametrize("what", STATES)
def test_a_broken_pod_gives_a_reason_and_the_reason_goes_with_it(kube: Kubectl, what: str) -> None:
    """kserve #1859: Ready=True while pods crash-loop."""
    state, reason = STATES[what]
    apply_pool(kube)
    pod = wait_for_pod(kube)
    play(kube, pod, state)
    found = wait_for_reason(kube, reason)
    assert found["status"] == "False"
    assert pod in found["message"]
    events = ("get", "events", "--field-selector=involvedObject.kind=InferencePool")
    wait_for("the Event", lambda: reason in kube.run(*events), TOLD_WITHIN, lambda: kube.run(*events))
    play(kube, pod, RUNNING, ready=True)
    assert wait_for_reason(kube, "PodsReady")["status"] == "True"


def test_kubectl_scale_reaches_the_deployment_and_apply_keeps_it(kube: Kubectl) -> None:
    apply_pool(kube)
    wait_for_pod(kube)
    kube.run("scale", f"{POOLS}/chat", "--replicas=3")
    apply_pool(kube)

    def replicas() -> bool:
        deployment = kube.get("deployment", "chat")
        return deployment is not None and deployment["spec"]["replicas"] == 3

    wait_for("three replicas", replicas, TOLD_WITHIN)
    kube.run("scale", "deployment/chat", "--replicas=7")
    wait_for("the Deployment to be put right", replicas, TOLD_WITHIN)


def test_a_quota_is_named_and_lifted(kube: Kubectl) -> None:
    kube.run("create", "quota", "none", "--hard=pods=0")
    apply_pool(kube)
    assert "exceeded quota" in wait_for_reason(kube, "QuotaExceeded")["message"]

    def marked(kind: str) -> bool:
        return any(ANNOTATION_TRY_AGAIN in one["metadata"]["annotations"] for one in kube.list(kind))

    wait_for("the ReplicaSet to be marked, so that its controller looks", lambda: marked("replicasets"), TOLD_WITHIN)
    kube.run("delete", "quota", "none")
    wait_for_reason(kube, "Starting", seconds=MENDED_WITHIN)
    wait_for("the mark to be gone", lambda: not marked("deployments"), MENDED_WITHIN)


def test_somebody_elses_service_is_left_alone(kube: Kubectl) -> None:
    kube.run("create", "service", "clusterip", "chat", "--tcp=80")
    apply_pool(kube)
    assert "Service chat" in wait_for_reason(kube, "ForeignObject")["message"]
    service = kube.get("service", "chat")
    assert service is not None
    assert "kvik.dev/pool" not in service["metadata"].get("labels", {})
    kube.run("delete", "service", "chat")
    wait_for_reason(kube, "Starting", seconds=MENDED_WITHIN)


def test_a_missing_permission_is_named_and_clears_when_it_is_granted(kube: Kubectl, plane: RunningControlPlane) -> None:
    role = json.loads(plane.run_kubectl("get", "clusterrole", "kvik-operator", "-o", "json"))
    budgets = {"apiGroups": ["policy"], "resources": ["poddisruptionbudgets"], "verbs": ["get", "list", "watch"]}
    without = {"rules": [*(rule for rule in role["rules"] if rule["resources"] != budgets["resources"]), budgets]}
    patch = ("patch", "clusterrole", "kvik-operator", "--type=merge", "-p")
    may = ("auth", "can-i", "patch", "poddisruptionbudgets.policy", f"--as=system:serviceaccount:{NAMESPACE}:{NAME}")
    assert plane.run_kubectl(*may, check=False).strip() == "yes"
    plane.run_kubectl(*patch, json.dumps(without))
    try:
        # The API server's own view of the roles follows with a delay.
        wait_for("the right to be gone", lambda: plane.run_kubectl(*may, check=False).strip() == "no", 10)
        apply_pool(kube)
        assert "poddisruptionbudgets" in wait_for_reason(kube, "AccessDenied")["message"]
    finally:
        plane.run_kubectl(*patch, json.dumps({"rules": role["rules"]}))
    wait_for_reason(kube, "Starting", seconds=MENDED_WITHIN)


def test_deleting_a_pool_leaves_no_child_and_no_finalizer_waits(kube: Kubectl) -> None:
    apply_pool(kube)
    wait_for_pod(kube)
    pool = kube.get(POOLS, "chat")
    assert pool is not None
    assert "finalizers" not in pool["metadata"]
    kube.run("delete", POOLS, "chat", "--timeout=10s")
    wait_for("no child", lambda: not kube.list(f"{CHILDREN},pods", "kvik.dev/pool=chat"), COLLECTED_WITHIN)


def test_a_pool_made_again_under_the_same_name_comes_up(kube: Kubectl) -> None:
    apply_pool(kube)
    wait_for_pod(kube)
    first = kube.get(POOLS, "chat")
    kube.run("delete", POOLS, "chat", "--timeout=10s")
    apply_pool(kube)
    second = kube.get(POOLS, "chat")
    assert first is not None
    assert second is not None
    assert first["metadata"]["uid"] != second["metadata"]["uid"]

    def owned() -> bool:
        deployment = kube.get("deployment", "chat")
        owners = [] if deployment is None else deployment["metadata"]["ownerReferences"]
        return [owner["uid"] for owner in owners] == [second["metadata"]["uid"]]

    wait_for("a Deployment of the new pool", owned, COLLECTED_WITHIN)


@pytest.mark.parametrize("example", EXAMPLES)
def test_every_example_is_accepted_and_carried_out(kube: Kubectl, example: str) -> None:
    kube.apply(json.dumps(EXAMPLES[example]))
    name = EXAMPLES[example]["metadata"]["name"]
    wait_for("its Deployment", lambda: kube.get("deployment", name), TOLD_WITHIN)
    wait_for_reason(kube, "Starting", name=name)


def test_a_namespaced_install_serves_its_namespace_and_uninstalling_leaves_nothing_but_the_api(tmp_path: Path) -> None:
    with control_plane(tmp_path) as plane:
        ours, others = (Kubectl(plane.kubectl, plane.kubeconfig, name) for name in ("ours", "others"))
        for kube in (ours, others):
            kube.run("create", "namespace", kube.namespace)
        install(plane, "--set=watch.namespaces={ours}")
        roles = plane.run_kubectl("get", "clusterroles,clusterrolebindings", "-o", "name")
        assert "kvik" not in roles
        (operator_folder := tmp_path / "operator").mkdir()
        with running_operator(plane, operator_folder, "--watch-namespace=ours") as operator:
            for kube in (ours, others):
                apply_pool(kube)
            wait_for_pod(ours)
            wait_for_reason(ours, "Starting")
            assert others.list(CHILDREN, "kvik.dev/pool=chat") == []
            ours.run("delete", POOLS, "chat")
        assert bugs(operator) == []
        wait_for("no child", lambda: not ours.list(f"{CHILDREN},pods", "kvik.dev/pool=chat"), COLLECTED_WITHIN)
        for release in ("kvik", "kvik-crds"):
            helm(plane, "uninstall", release, "--wait")
        kinds = "deployments,services,leases,roles,rolebindings,networkpolicies,poddisruptionbudgets"
        for namespace in (NAMESPACE, "ours"):
            assert plane.run_kubectl("get", kinds, "-n", namespace, "-o", "name") == ""
        cluster_wide = plane.run_kubectl("get", "clusterroles,clusterrolebindings,crds", "-o", "name").split()
        assert [name for name in cluster_wide if "kvik" in name] == [
            "customresourcedefinition.apiextensions.k8s.io/inferencepools.kvik.dev"
        ]
