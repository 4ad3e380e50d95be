"""The operator as a process on a real API server: create, update, scale, drift, delete; start, stop and hand over."""

import json

import pytest

from tests.support.kubectl import condition, wait_for
from tests.support.operator_process import OperatorProcess
from tests.support.operator_rig import CHILDREN, COLLECTED_WITHIN, Object, Rig, eventually, holds

pytestmark = pytest.mark.timeout(600)

SCALING = {"minReplicas": 1, "maxReplicas": 4, "scaleDownStabilization": "5s"}


def replicas(rig: Rig) -> int:
    deployment = rig.deployment()
    return -1 if deployment is None else deployment["spec"]["replicas"]


def wait_leader(operator: OperatorProcess, seconds: float = 30) -> None:
    """An operator is ready before it leads."""
    eventually("it to lead", lambda: operator.metric("kvik_operator_leader") == 1.0, seconds, operator.log_tail)


def test_a_pool_is_made_changed_and_gone_without_a_trace(operated: Rig) -> None:
    rig = operated
    operator = rig.operator()
    rig.create(replicas=2)
    rig.wait_ready()
    assert {child["kind"] for child in rig.children()} == {
        "Deployment",
        "Service",
        "ServiceAccount",
        "PodDisruptionBudget",
        "NetworkPolicy",
    }

    def counts() -> tuple[int, int, str]:
        status = (rig.pool() or {})["status"]
        return status["replicas"], status["readyReplicas"], status["selector"]

    eventually("both pods to be counted", lambda: counts() == (2, 2, "kvik.dev/pool=chat"), 30, rig.explain)

    before = {pod["metadata"]["uid"] for pod in rig.pods()}
    rig.patch({"batching": {"chunkedPrefillTokens": 64}})
    eventually("all pods to be new ones", lambda: not before & {p["metadata"]["uid"] for p in rig.pods()}, 30)
    rig.wait_ready()
    (container,) = (rig.deployment() or {})["spec"]["template"]["spec"]["containers"]
    assert "--chunked-prefill-tokens=64" in container["args"]

    rig.delete()
    eventually("all children to be gone", rig.cleared, COLLECTED_WITHIN)
    assert operator.exit_status() is None
    assert operator.metric('kvik_operator_reconcile_seconds_count{outcome="bug"}') is None


def test_load_scales_up_and_idleness_down_and_the_events_say_why(operated: Rig) -> None:
    rig = operated
    rig.operator()
    rig.create(scaling=SCALING)
    rig.wait_ready()
    rig.kubelet.set_load(waiting=8, waiting_prompt_tokens=0)
    eventually("the pool to scale up", lambda: replicas(rig) >= 2, 25, rig.explain)
    rig.kubelet.set_load()
    eventually("the pool to scale down", lambda: replicas(rig) == 1, 45, rig.explain)

    def told_of_the_last_step() -> bool:
        return any(event["message"].endswith("/ 75 % -> 1") for event in rig.events("ScaledDown"))

    eventually("the Event of the last step down", told_of_the_last_step, 10, rig.explain)

    def told_of_the_first_step() -> bool:
        first = "160 % of full x 1 pod / 75 % -> 3, at most doubling in 15 s: 2"
        return any(first in event["message"] for event in rig.events("ScaledUp"))

    eventually("the Event of the first step up", told_of_the_first_step, 10, rig.explain)

    def newest() -> Object:
        step: Object = (rig.pool() or {})["status"]["scaling"]["history"][0]
        return step

    eventually("the history to tell of it", lambda: newest()["to"] == 1, 10, rig.explain)
    managers = {entry["manager"] for entry in (rig.pool() or {})["metadata"]["managedFields"]}
    assert managers >= {"kvik-operator", "kvik-autoscaler"}


def test_a_pool_says_that_its_pods_cannot_use_the_new_api_keys_until_they_can(operated: Rig) -> None:
    rig = operated
    rig.operator()
    rig.create()
    rig.wait_ready()

    def degraded() -> str:
        return (condition(rig.pool(), "Degraded") or {}).get("reason", "not said")

    assert degraded() == "AsExpected"
    rig.kubelet.set_load(api_keys_outdated=True)
    eventually("the pool to say so", lambda: degraded() == "APIKeysOutdated", 15, rig.explain)
    rig.kubelet.set_load()
    eventually("the pool to be as expected", lambda: degraded() == "AsExpected", 15, rig.explain)


def test_a_scale_that_names_an_old_version_of_the_pool_is_refused(operated: Rig) -> None:
    """What makes reading the pool and scaling it one step."""
    rig = operated
    version = rig.create(scaling=SCALING)["metadata"]["resourceVersion"]
    rig.patch({"replicas": 0})
    patch = json.dumps({"metadata": {"resourceVersion": version}, "spec": {"replicas": 2}})
    with pytest.raises(RuntimeError, match="object has been modified"):
        rig.kubectl("patch", "inferencepools.kvik.dev/chat", "--subresource=scale", "--type=merge", f"--patch={patch}")
    assert (rig.pool() or {})["spec"]["replicas"] == 0


def test_drift_is_repaired_without_waiting_for_a_relist(operated: Rig) -> None:
    rig = operated
    rig.operator()
    rig.create()
    rig.wait_ready()
    rig.kubectl("scale", "deployment/chat", "--replicas=3")
    eventually("replicas to be put back", lambda: replicas(rig) == 1, 10)
    rig.kubectl("delete", "service/chat")
    eventually("the Service to be back", lambda: len(rig.children()) == len(CHILDREN), 10)
    rig.kubectl("label", "poddisruptionbudget/chat", "kvik.dev/pool-")
    eventually("the label to be back", lambda: len(rig.children()) == len(CHILDREN), 10)
    rig.kubectl(
        "patch", "deployment/chat", "--type=json", '--patch=[{"op": "remove", "path": "/metadata/ownerReferences"}]'
    )
    eventually("the owner to be back", lambda: (rig.deployment() or {})["metadata"].get("ownerReferences"), 10)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_pool_that_is_deleted_and_made_again_many_times_belongs_to_itself(operated: Rig) -> None:
    rig = operated
    rig.operator()
    for _ in range(50):
        rig.create()
        eventually("a Deployment", rig.deployment, 10, rig.explain)
        rig.delete()
    uid = rig.create()["metadata"]["uid"]
    rig.wait_ready()

    def all_its_own() -> bool:
        children = rig.children()
        owners = {child["metadata"]["ownerReferences"][0]["uid"] for child in children}
        return owners == {uid} and len(children) == len(CHILDREN)

    # The garbage collector may still have children of the pools before: they go, and are made anew.
    eventually("all children to be the last pool's", all_its_own, 60, rig.explain)


def test_no_child_and_no_pod_carries_kopfs_marks_and_foreign_ones_stay(operated: Rig) -> None:
    """mysql-operator #51, kopf #1087; and kopf strips its own finalizer marker from all it watches.

    Nor does a spec of 200 KB, of which kopf would note a copy on each object, keep anything from being done.
    """
    rig = operated
    marker = "kopf.zalando.org/KopfFinalizerMarker"
    rig.operator()
    env = [{"name": f"TEXT_{n}", "value": "x" * 4096} for n in range(32)]
    rig.create(template={"env": env, "annotations": {f"example.com/text-{n}": "x" * 4096 for n in range(18)}})
    rig.wait_ready()
    rig.kubectl("patch", "service/chat", "--type=merge", f'--patch={{"metadata": {{"finalizers": ["{marker}"]}}}}')
    rig.kubectl("annotate", "service/chat", "touched=1")

    def foreign_marks_alone() -> bool:
        objects = [*rig.children(), *rig.pods(), rig.pool() or {}]
        marked = {item["kind"]: item["metadata"]["finalizers"] for item in objects if "finalizers" in item["metadata"]}
        annotations = [name for item in objects for name in item["metadata"].get("annotations", {})]
        return marked == {"Service": [marker]} and not [name for name in annotations if "kopf" in name]

    holds("the marks are those of others", foreign_marks_alone, 2)
    rig.kubectl("patch", "service/chat", "--type=merge", '--patch={"metadata": {"finalizers": null}}')


@pytest.mark.long
def test_a_settled_pool_that_scales_is_written_once_a_minute_at_most(operated: Rig) -> None:
    rig = operated
    proxy = rig.proxy()
    rig.operator(proxy=proxy)
    rig.create(scaling=SCALING)
    rig.wait_ready()

    def scales_on_load() -> bool:
        return (condition(rig.pool(), "ScalingActive") or {}).get("reason") == "ScalingOnLoad"

    eventually("the end of the first window, which status tells", scales_on_load, 30, rig.explain)
    before = len(proxy.writes())

    def written() -> list[str]:
        return [str(write) for write in proxy.writes()[before:]]

    holds("a change of wording is written once a minute", lambda: len(written()) <= 1, 40)
    assert all(write.endswith("/status") for write in written())


def test_of_two_replicas_only_the_leader_writes_and_the_other_takes_over(operated: Rig) -> None:
    rig = operated
    first_proxy, second_proxy = rig.proxy(), rig.proxy()
    first = rig.operator(proxy=first_proxy)
    wait_leader(first)
    second = rig.operator(proxy=second_proxy)
    rig.create()
    rig.wait_ready()
    assert second_proxy.writes() == []
    assert (first.metric("kvik_operator_leader"), second.metric("kvik_operator_leader")) == (1.0, 0.0)
    eventually("the second to know the pool", lambda: second.metric("kvik_operator_pools") == 1.0, 10)

    first.kill()  # no chance to clear the Lease
    rig.patch({"replicas": 2})
    eventually("the second to take over", lambda: replicas(rig) == 2, 25, rig.explain)
    assert second_proxy.writes() != []

    assert second.terminate() == 0
    assert rig.lease_holder() == ""
    third = rig.operator()
    rig.patch({"replicas": 1})
    # Before the fifteen seconds after which a lease expires that nobody cleared.
    wait_for("the third to lead", lambda: replicas(rig) == 1, 12, rig.explain, every=0.1)
    assert third.metric("kvik_operator_leader") == 1.0


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_frozen_leader_that_wakes_up_writes_nothing_and_ends(operated: Rig) -> None:
    """cilium PR #42920: acted after its deadline."""
    rig = operated
    first_proxy = rig.proxy()
    first = rig.operator(proxy=first_proxy)
    wait_leader(first)
    second = rig.operator()
    rig.create()
    rig.wait_ready()
    first.freeze()
    wait_leader(second)
    before = len(first_proxy.writes())
    rig.patch({"replicas": 2})
    rig.wait_ready()
    first.resume()
    eventually("the first to end", lambda: first.exit_status() is not None, 15)
    assert first.exit_status() != 0
    assert [str(write) for write in first_proxy.writes()[before:]] == []
    holds("the second stays", lambda: second.exit_status() is None, 5)
