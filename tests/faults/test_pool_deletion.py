"""What becomes of a pool's objects when it is deleted, in each of Kubernetes' ways, and when it is made again."""

from collections.abc import Mapping

import pytest

from tests.support.fault_proxy import Request
from tests.support.kubectl import condition
from tests.support.operator_rig import COLLECTED_WITHIN, Object, Rig, eventually, holds

pytestmark = pytest.mark.timeout(600)

DRAIN = 8.0
"""Seconds that pods go on after their deletion."""


def uids(objects: list[Object]) -> set[str]:
    return {item["metadata"]["uid"] for item in objects}


def owners(rig: Rig) -> set[str | None]:
    """Of all that the pool owns; None: an object has no owner."""
    objects = [*rig.children(), *rig.revisions()]
    return {
        owner["uid"] if owner else None
        for item in objects
        for owner in item["metadata"].get("ownerReferences") or [None]
    }


def ready_pods(rig: Rig) -> int:
    count: int = ((rig.pool() or {}).get("status") or {}).get("readyReplicas", 0)
    return count


def running(rig: Rig) -> list[Object]:
    return [pod for pod in rig.pods() if "deletionTimestamp" not in pod["metadata"]]


def two_ready_pods(rig: Rig) -> None:
    """Of a pool that has done what was asked of it."""
    rig.create(replicas=2, drain={"timeout": "10s"})
    eventually("two pods to be ready", lambda: ready_pods(rig) == 2 and is_complete(rig), 30, rig.explain)


def is_complete(rig: Rig) -> bool:
    return (condition(rig.pool(), "RolloutComplete") or {}).get("status") == "True"


def of_children(writes: list[Request]) -> list[str]:
    """Not the status, which tells of what pods say, one after the other, nor Events."""
    return [str(write) for write in writes if not write.is_event and not write.path.endswith("/status")]


def test_an_orphaned_pools_pods_go_on_and_the_next_pool_takes_them_over(operated: Rig) -> None:
    """Also when the children's watches are ahead of the pool's: with an owner that is gone, the garbage collector would
    take them.
    """
    rig = operated
    proxy = rig.proxy()
    rig.operator(proxy=proxy)
    two_ready_pods(rig)
    objects, pods, written = uids(rig.children()), uids(rig.pods()), len(proxy.writes())
    proxy.keep_event = lambda event: event["object"]["kind"] != "InferencePool"

    rig.delete(propagation="Orphan")
    eventually("the pool to be gone", lambda: rig.pool() is None, 60)
    holds("all stays as it is", lambda: (uids(rig.children()), uids(rig.pods())) == (objects, pods), 5)
    assert owners(rig) == {None}
    assert of_children(proxy.writes()[written:]) == []

    proxy.behave()
    uid = rig.create(replicas=2, drain={"timeout": "10s"})["metadata"]["uid"]
    eventually("all to be the new pool's", lambda: owners(rig) == {uid}, 15, rig.explain)
    rig.wait_ready()
    assert (uids(rig.children()), uids(rig.pods())) == (objects, pods)


@pytest.mark.long
def test_what_somebody_made_his_own_after_an_orphaning_is_named_and_left_alone(operated: Rig) -> None:
    rig = operated
    rig.operator()
    two_ready_pods(rig)
    rig.delete(propagation="Orphan")
    eventually("nothing to have an owner", lambda: rig.pool() is None and owners(rig) == {None}, 60)
    rig.kubectl("label", "deployment/chat", "kvik.dev/pool-")

    rig.create(replicas=1)
    told = eventually("the conflict to be told", lambda: _conflict(rig), 30, rig.explain)
    assert "Deployment chat" in told["message"]
    assert len(running(rig)) == 2

    rig.kubectl("delete", "deployment/chat")
    eventually("its own Deployment", lambda: rig.deployment() and ready_pods(rig) == 1, COLLECTED_WITHIN, rig.explain)


def _conflict(rig: Rig) -> Mapping[str, str] | None:
    found = condition(rig.pool(), "Degraded")
    return found if found is not None and found["reason"] == "ForeignObject" else None


@pytest.mark.long
def test_a_pool_that_is_made_again_does_not_wait_for_the_streams_of_the_one_before(operated: Rig) -> None:
    rig = operated
    rig.operator()
    rig.kubelet.drains = 120.0
    two_ready_pods(rig)
    before = uids(rig.pods())

    rig.delete()
    eventually("the Deployment to be gone", lambda: rig.deployment() is None, COLLECTED_WITHIN)
    eventually("the old pods to end", lambda: before == uids(rig.pods()) and not running(rig), 30)
    rig.create(replicas=2)
    eventually("two new pods to be ready", lambda: ready_pods(rig) == 2, 60, rig.explain)
    assert before < uids(rig.pods())
    rig.kubelet.drains = 0.0


@pytest.mark.parametrize("propagation", ["Background", "Foreground"])
def test_a_pool_goes_with_all_it_has_while_no_operator_runs(operated: Rig, propagation: str) -> None:
    """VictoriaMetrics #2726, opensearch #976: a finalizer or a webhook outlived its operator, and nothing could go."""
    rig = operated
    operator = rig.operator()
    two_ready_pods(rig)
    assert operator.terminate() == 0
    rig.delete(propagation=propagation)
    eventually("nothing to be left", lambda: rig.pool() is None and rig.cleared(), COLLECTED_WITHIN)


@pytest.mark.long
def test_a_deletion_in_the_foreground_ends_too_and_the_next_pool_says_what_it_waits_for(operated: Rig) -> None:
    """Kubernetes keeps the Deployment until its pods are gone, since the deletion is handed down."""
    rig = operated
    rig.operator()
    rig.kubelet.drains = DRAIN
    two_ready_pods(rig)
    before = uids(rig.pods())

    rig.delete(propagation="Foreground")
    eventually("the pool to be gone", lambda: rig.pool() is None, 30)
    rig.create(replicas=2)
    eventually("the old Deployment to be waited for", lambda: _waits_for_the_deployment(rig), 30, rig.explain)
    eventually("two new pods to be ready", lambda: _all_new(rig, before), COLLECTED_WITHIN, rig.explain)


def _waits_for_the_deployment(rig: Rig) -> bool:
    found = condition(rig.pool(), "RolloutComplete") or {}
    return "waiting until the old Deployment chat is gone" in found.get("message", "")


def _all_new(rig: Rig, before: set[str]) -> bool:
    return ready_pods(rig) == 2 and not before & uids(rig.pods())


@pytest.mark.long
def test_a_namespace_that_goes_while_its_pods_drain_is_gone_soon_after_them(operated: Rig) -> None:
    """Kubernetes deletes pods first, and the rest once they are gone: until then pool and Deployment are all there.

    It looks again after half of the pods' grace.
    """
    rig = operated
    proxy = rig.proxy()
    rig.operator(proxy=proxy)
    rig.kubelet.drains = DRAIN
    two_ready_pods(rig)
    written = len(proxy.writes())

    rig.plane.run_kubectl("delete", "namespace", rig.namespace, "--wait=false")
    eventually("the pods to be gone", lambda: rig.pods() == [], DRAIN + 30)
    eventually("the namespace to be gone", lambda: _namespace(rig) == "", 30)
    writes = proxy.writes()[written:]
    rig.plane.run_kubectl("create", "namespace", rig.namespace)
    assert len(of_children(writes)) <= 3, writes
    assert len([write for write in writes if not write.is_event]) <= 10, writes
    rig.create()
    rig.wait_ready()


def _namespace(rig: Rig) -> str:
    return rig.plane.run_kubectl("get", "namespace", rig.namespace, "--ignore-not-found", "--output=name")
