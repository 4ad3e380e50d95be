"""The chart's two admission policies on a real API server: what they let through and refuse, and that they go."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from kubernetes import client
from kubernetes.client.exceptions import ApiException

from tests.support.kubectl import condition
from tests.support.operator_rig import COLLECTED_WITHIN, Rig, eventually
from tests.support.running_operator import NAME, NAMESPACE, RELEASE, helm

pytestmark = pytest.mark.timeout(600)
OPERATOR = f"system:serviceaccount:{NAMESPACE}:{NAME}"
POLICIES = "validatingadmissionpolicies,validatingadmissionpolicybindings"
BUNDLED = "file:///models/x/model.gguf"
ALLOWED: dict[str, dict[str, Any]] = {
    "hub": {"model": {"source": "hf://org/name@main"}},
    "very_revision": {"model": {"source": "hf://other/name@v1#a.gguf"}},
    "claim": {"model": {"source": "pvc://models/a/b"}},
    "gpu": {"resources": {"device": "GPU"}},
    "three": {"replicas": 3},
    "scaled_to_three": {"scaling": {"maxReplicas": 3}},
}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "source": (
        {"model": {"source": "hf://organisation/name@main"}},
        "hf://organisation/name@main is not allowed in this cluster, only hf://org, hf://other/name@v1, pvc://models,",
    ),
    "revision": ({"model": {"source": "hf://other/name@v10"}}, "spec.model.source: hf://other/name@v10 is not allowed"),
    "claim": ({"model": {"source": "pvc://models2/a"}}, "spec.model.source: pvc://models2/a is not allowed"),
    "accelerator": (
        {"resources": {"device": "GPU", "accelerators": {"resourceName": "amd.com/gpu"}}},
        "spec.resources.accelerators.resourceName: amd.com/gpu is not allowed in this cluster, only nvidia.com/gpu",
    ),
    "four": ({"replicas": 4}, "spec.replicas: 4 is more than the 3 that a pool may have in this cluster"),
    "scaled_to_four": ({"scaling": {"maxReplicas": 4}}, "spec.scaling.maxReplicas: 4 is more than the 3"),
}


def pool(name: str = "chat", **spec: Any) -> str:
    base = {"model": {"source": BUNDLED}, "resources": {"device": "CPU"}}
    manifest = {"apiVersion": "kvik.dev/v1alpha1", "kind": "InferencePool", "metadata": {"name": name}}
    return json.dumps(manifest | {"spec": base | spec})


def refusal(rig: Rig, *arguments: str, stdin: str | None = None) -> str | None:
    """What kubectl says; None: it was let through."""
    try:
        rig.kubectl(*arguments, stdin=stdin)
    except RuntimeError as error:
        return str(error)
    return None


def create(rig: Rig, **spec: Any) -> str | None:
    return refusal(rig, "create", "--dry-run=server", "-f", "-", stdin=pool(**spec))


@contextmanager
def pools_policy(rig: Rig, *values: str) -> Iterator[str]:
    """Of a second release, which serves the rig's namespace only; gives its name."""
    release = f"policy-{rig.namespace[-8:]}"
    helm(
        *(rig.plane, "install", release, "charts/kvik", f"--set=watch.namespaces={{{rig.namespace}}}"),
        *("--set=admissionPolicy.pools.enabled=true", *(f"--set={value}" for value in values)),
    )
    try:
        yield release
    finally:
        helm(rig.plane, "uninstall", release)


def test_pools_are_held_to_what_the_policy_allows_and_it_goes_with_the_release(operated: Rig) -> None:
    rig = operated
    rig.create("old", replicas=5)
    values = (
        "admissionPolicy.pools.allowedSources={hf://org,hf://other/name@v1,pvc://models,file:///models/}",
        *("admissionPolicy.pools.allowedAccelerators={nvidia.com/gpu}", "admissionPolicy.pools.maxReplicas=3"),
    )
    with pools_policy(rig, *values) as release:
        eventually("the policy to be in force", lambda: create(rig, replicas=4) is not None, 30)
        for what, spec in ALLOWED.items():
            assert create(rig, **spec) is None, what
        for what, (spec, words) in REFUSED.items():
            assert words in (create(rig, **spec) or ""), what
        _what_was_there_before_can_be_kept_and_lessened(rig)
        rig.plane.run_kubectl("create", "namespace", f"{rig.namespace}-other")
        rig.plane.run_kubectl(
            "create", "--dry-run=server", f"-n={rig.namespace}-other", "-f", "-", stdin=pool(replicas=4)
        )
        assert release in rig.plane.run_kubectl("get", POLICIES, "-oname")
    assert release not in rig.plane.run_kubectl("get", POLICIES, "-oname")
    eventually("what was refused to be let through", lambda: create(rig, replicas=4) is None, 30)


def test_devices_can_be_limited(operated: Rig) -> None:
    with pools_policy(operated, "admissionPolicy.pools.allowedDevices={CPU}"):
        gpu = {"resources": {"device": "GPU"}}
        eventually("the policy to be in force", lambda: create(operated, **gpu) is not None, 30)
        assert "spec.resources.device: GPU is not allowed in this cluster, only CPU" in (create(operated, **gpu) or "")
        assert create(operated, model={"source": "hf://any/name@main"}) is None


def _what_was_there_before_can_be_kept_and_lessened(rig: Rig) -> None:
    old = "inferencepools.kvik.dev/old"
    assert refusal(rig, "annotate", old, "a=b") is None
    assert "spec.replicas: 6 is more than the 3" in (refusal(rig, "scale", old, "--replicas=6") or "")
    assert refusal(rig, "scale", old, "--replicas=3") is None
    assert refusal(rig, "scale", old, "--replicas=0") is None
    finalizers = '--patch={{"metadata": {{"finalizers": {}}}}}'
    assert refusal(rig, "patch", old, "--type=merge", finalizers.format('["example.com/x"]')) is None
    assert refusal(rig, "delete", old, "--wait=false") is None
    assert refusal(rig, "patch", old, "--type=merge", finalizers.format("null")) is None
    assert rig.pool("old") is None


@pytest.fixture
def confined(operated: Rig) -> Iterator[Rig]:
    """The operator under its own policy, in force."""
    rig, value = operated, "--set=admissionPolicy.operator.enabled={}"
    helm(rig.plane, "upgrade", RELEASE, "charts/kvik", value.format("true"))
    try:
        eventually("the policy to be in force", lambda: _as_operator(rig, service({})) is not None, 30)
        yield rig
    finally:
        helm(rig.plane, "upgrade", RELEASE, "charts/kvik", value.format("false"))
    assert "own-writes" not in rig.plane.run_kubectl("get", POLICIES, "-oname")


def _as_operator(rig: Rig, manifest: dict[str, Any]) -> str | None:
    return refusal(rig, "create", "--dry-run=server", f"--as={OPERATOR}", "-f", "-", stdin=json.dumps(manifest))


def owned(name: str = "chat", owner: str = "InferencePool") -> dict[str, Any]:
    reference = {"apiVersion": "kvik.dev/v1alpha1", "kind": owner, "name": "chat", "uid": "1", "controller": True}
    return {"name": name, "labels": {"kvik.dev/pool": "chat"}, "ownerReferences": [reference]}


def service(metadata: dict[str, Any]) -> dict[str, Any]:
    spec = {"ports": [{"port": 8000}], "selector": {"kvik.dev/pool": "chat"}}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "mine", **metadata}, "spec": spec}


def deployment(**pod: Any) -> dict[str, Any]:
    """As the operator makes it, with `pod` over the pods' spec."""
    container = {"name": "engine", "image": "x", "securityContext": {"allowPrivilegeEscalation": False}}
    own = {
        "serviceAccountName": "chat-engine",
        "automountServiceAccountToken": False,
        "containers": [container],
    }
    labels = {"kvik.dev/pool": "chat"}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": owned(),
        "spec": {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": own | pod}},
    }


PRIVILEGED = {"name": "other", "image": "x", "securityContext": {"privileged": True}}
NETWORK_POLICY = {
    "apiVersion": "networking.k8s.io/v1",
    "kind": "NetworkPolicy",
    "metadata": {"name": "mine"},
    "spec": {"podSelector": {}},
}
CAPABLE = {
    "name": "engine",
    "image": "x",
    "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"add": ["NET_RAW"]}},
}
HOST_PATH = [{"name": "root", "hostPath": {"path": "/"}}]
NOT_THE_OPERATORS: dict[str, tuple[dict[str, Any], str]] = {
    "no_label": (service({}), "not named and labelled"),
    "other_name": (service(owned("other")), "not named and labelled"),
    "other_owner": (service(owned(owner="Deployment")), "not owned by its pool"),
    "host_path": (deployment(volumes=HOST_PATH), "pods with access to the host"),
    "host_network": (deployment(hostNetwork=True), "pods with access to the host"),
    "privileged": (deployment(containers=[PRIVILEGED]), "pods with access to the host"),
    "privileged_first": (deployment(initContainers=[PRIVILEGED]), "pods with access to the host"),
    "capability": (deployment(containers=[CAPABLE]), "pods with access to the host"),
    "token": (deployment(automountServiceAccountToken=True), "pods with access to the host"),
    "other_account": (deployment(serviceAccountName="default"), "pods with access to the host"),
}


def test_the_operator_does_its_work_and_nothing_else_under_its_own_policy(confined: Rig) -> None:
    """A pool's whole life; and what its rights allow and it never does is refused, though the token were stolen."""
    rig = confined
    operator = rig.operator()
    rig.create()
    rig.wait_ready()
    rig.patch({"replicas": 2, "batching": {"maxRequests": 4}})
    eventually("two pods of the new revision", lambda: _rolled(rig), 90, rig.explain)
    rig.patch({"replicas": 1})
    eventually("one pod", lambda: (rig.pool() or {})["status"]["ready"] == "1/1", 60, rig.explain)
    rig.kubectl("annotate", "deployment/chat", "kvik.dev/manifest-hash=x", "--overwrite")
    eventually("the drift to be put right", lambda: _manifest_hash(rig) != "x", 30, rig.explain)
    eventually("the Event of ready pods", lambda: rig.events("PodsReady"), 10)
    assert not [line for line in operator.log_lines() if "not what the Kvik operator does" in str(line)]

    rig.kubectl("create", "service", "clusterip", "mine", "--tcp=1:1")
    for what, (manifest, words) in NOT_THE_OPERATORS.items():
        assert words in (_as_operator(rig, manifest) or ""), what
    about = {"apiVersion": "v1", "kind": "Pod", "name": "x", "namespace": rig.namespace}
    event = {"apiVersion": "v1", "kind": "Event", "metadata": {"name": "x"}, "reason": "R", "type": "Normal"}
    assert "only Events about InferencePools" in (_as_operator(rig, event | {"involvedObject": about}) or "")
    as_operator = (f"--as={OPERATOR}", "--dry-run=server")
    hijack = {"metadata": owned("mine") | {"labels": {"kvik.dev/pool": "mine"}}}
    hijack["metadata"]["ownerReferences"][0]["name"] = "mine"
    taken = refusal(rig, "patch", "service/mine", *as_operator, "--type=merge", f"--patch={json.dumps(hijack)}")
    assert "an object of no pool" in (taken or "")
    rig.kubectl("create", "-f", "-", stdin=json.dumps(NETWORK_POLICY))
    deleted = refusal(rig, "delete", "networkpolicy/mine", *as_operator)
    assert "DELETE networkpolicies.networking.k8s.io" in (deleted or "")
    lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "x", "namespace": NAMESPACE}}
    with pytest.raises(RuntimeError, match="only its own Lease"):
        rig.plane.run_kubectl("create", *as_operator, "-f", "-", stdin=json.dumps(lease))
    patch_pod_as_operator(rig, {"annotations": {"a": "b"}})
    with pytest.raises(ApiException, match="only annotations of the pods of pools"):
        patch_pod_as_operator(rig, {"labels": {"a": "b"}})

    rig.delete()
    eventually("nothing of the pool to be left", rig.cleared, COLLECTED_WITHIN, rig.explain)


def patch_pod_as_operator(rig: Rig, metadata: dict[str, Any]) -> None:
    """Not by kubectl, which reads what it patches: the operator may not get pods."""
    client.CoreV1Api(rig.api).patch_namespaced_pod(
        *(rig.pods()[0]["metadata"]["name"], rig.namespace, {"metadata": metadata}),
        dry_run="All",
        _headers={"Impersonate-User": OPERATOR},
    )


def _manifest_hash(rig: Rig) -> str:
    deployment = rig.deployment()
    assert deployment is not None
    found: str = deployment["metadata"]["annotations"]["kvik.dev/manifest-hash"]
    return found


def _rolled(rig: Rig) -> bool:
    pool = rig.pool()
    complete = condition(pool, "RolloutComplete") or {}
    status = (pool or {})["status"]
    return complete.get("status") == "True" and status["ready"] == "2/2" and len(rig.revisions()) == 2
