"""Rolls on a real API server and its controllers: with a surge, in place, and from the one to the other."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from kvik_operator.names import ANNOTATION_ROLL_IN_PLACE
from tests.support.kubectl import condition as condition_of
from tests.support.operator_rig import Rig, eventually, holds

pytestmark = pytest.mark.timeout(600)

SURGE = {"maxSurge": 1, "maxUnavailable": 0}
IN_PLACE = {"maxSurge": 0, "maxUnavailable": 1}


def condition(rig: Rig, kind: str) -> Mapping[str, str]:
    """Of the pool's status; empty before it is written."""
    return condition_of(rig.pool(), kind) or {}


def degraded(rig: Rig) -> tuple[str | None, str | None]:
    found = condition(rig, "Degraded")
    return found.get("status"), found.get("reason")


def settled(rig: Rig, **spec: Any) -> set[str]:
    """The uids of a pool's two pods, which fill the room that there is."""
    rig.kubelet.room = 2
    rig.operator()
    rig.create(replicas=2, **spec)
    rig.wait_ready()
    eventually("the first roll to be over", lambda: rolled(rig, "--max-requests=32"), 30, rig.explain)
    return uids(rig)


def uids(rig: Rig) -> set[str]:
    return {pod["metadata"]["uid"] for pod in rig.pods()}


def of(rig: Rig, argument: str) -> list[Mapping[str, Any]]:
    """The pods whose engines have this argument."""
    return [pod for pod in rig.pods() if argument in pod["spec"]["containers"][0]["args"]]


def names(pods: Sequence[Mapping[str, Any]]) -> list[str]:
    return [pod["metadata"]["name"] for pod in pods]


def rolled(rig: Rig, argument: str) -> bool:
    return len(rig.pods()) == len(of(rig, argument)) == 2 and condition(rig, "RolloutComplete").get("status") == "True"


def pace(rig: Rig) -> tuple[Any, bool]:
    """What the Deployment may do, and whether it is noted that a roll went over to it."""
    deployment: Mapping[str, Any] = rig.deployment() or {"metadata": {}, "spec": {"strategy": {}}}
    noted = ANNOTATION_ROLL_IN_PLACE in (deployment["metadata"].get("annotations") or {})
    return deployment["spec"]["strategy"].get("rollingUpdate"), noted


def change(rig: Rig, requests: int) -> None:
    """Ask for other pods."""
    rig.patch({"batching": {"maxRequests": requests}})


def test_a_full_cluster_is_rolled_in_place_also_by_an_operator_that_starts_in_the_middle(operated: Rig) -> None:
    """LLMKube #192, kserve #4188: the surge pod stays Pending for ever where every GPU is taken."""
    rig = operated
    settled(rig)
    rig.kubelet.waited = 61
    rig.kubelet.starts = lambda pod: "--max-requests=8" not in pod["spec"]["containers"][0]["args"]
    change(rig, 8)
    eventually("the roll to go on in place", lambda: pace(rig) == (IN_PLACE, True), 30, rig.explain)
    eventually("one old pod to be left", lambda: len(of(rig, "--max-requests=32")) == 1, 30, rig.explain)
    eventually("an Event to tell of it", lambda: rig.events("SurgeUnschedulable"), 30, rig.explain)
    complete = condition(rig, "RolloutComplete")
    assert (complete["status"], complete["reason"]) == ("False", "SurgeUnschedulable")
    assert "in place" in complete["message"]

    operator, _ = rig.started[-1]
    operator.kill()
    rig.clear_lease()
    rig.operator()
    (old,) = of(rig, "--max-requests=32")

    def alike() -> bool:
        return pace(rig) == (IN_PLACE, True) and names(of(rig, "--max-requests=32")) == names([old])

    holds("the roll goes on alike", alike, 4)
    assert condition(rig, "Ready")["status"] == "True"

    rig.kubelet.starts = lambda _: True
    eventually("all pods to be new", lambda: rolled(rig, "--max-requests=8"), 60, rig.explain)
    eventually("the next roll to begin with a surge", lambda: pace(rig) == (SURGE, False), 30, rig.explain)
    assert len(rig.events("SurgeUnschedulable")) == 1


@pytest.mark.long
def test_surge_waits_for_room_and_says_so(operated: Rig) -> None:
    rig = operated
    before = settled(rig, rollout={"strategy": "Surge"})
    rig.kubelet.waited = 3600
    change(rig, 8)
    eventually(
        "the way out to be told",
        lambda: "waits for room" in condition(rig, "RolloutComplete").get("message", ""),
        30,
        rig.explain,
    )
    holds("no pod is ended", lambda: before < uids(rig) and pace(rig) == (SURGE, False), 3)
    rig.kubelet.room = 3
    eventually("the roll to be over", lambda: rolled(rig, "--max-requests=8"), 60, rig.explain)


def test_a_change_of_strategy_rolls_nothing_and_in_place_needs_no_room(operated: Rig) -> None:
    rig = operated
    before = settled(rig)
    rig.patch({"rollout": {"strategy": "InPlace"}})
    eventually("the Deployment to know", lambda: pace(rig) == (IN_PLACE, False), 30, rig.explain)
    holds("no pod is touched", lambda: uids(rig) == before, 3)
    assert len(rig.listed("replicasets.apps")) == len(rig.revisions()) == 1
    assert condition(rig, "RolloutComplete")["status"] == "True"

    change(rig, 8)
    eventually("the roll to be over", lambda: rolled(rig, "--max-requests=8"), 60, rig.explain)
    assert not uids(rig) & before
    assert rig.events("SurgeUnschedulable") == []


@pytest.mark.long
@pytest.mark.parametrize("strategy", ["Auto", "InPlace"])
def test_a_revision_all_of_whose_pods_crash_is_left_where_they_take_all_the_room(operated: Rig, strategy: str) -> None:
    """kthena #743, LLMKube #1250: old pods that crash-loop held up for ever the change that mends them."""
    rig = operated
    rig.kubelet.room, rig.kubelet.waited = 2, 61
    rig.kubelet.crashes = lambda pod: "--max-requests=8" in pod["spec"]["containers"][0]["args"]
    rig.operator()
    rig.create(replicas=2, batching={"maxRequests": 8}, rollout={"strategy": strategy})
    crash = ("True", "CrashLooping")
    eventually("the crash to be told", lambda: degraded(rig) == crash, 30, rig.explain)
    change(rig, 16)
    eventually("the good revision everywhere", lambda: rolled(rig, "--max-requests=16"), 60, rig.explain)
    eventually("nothing to be wrong", lambda: degraded(rig)[0] == "False", 30, rig.explain)
    assert condition(rig, "Ready")["status"] == "True"


@pytest.mark.long
def test_a_pool_that_asks_for_more_pods_than_fit_keeps_those_that_run_until_it_asks_for_fewer(operated: Rig) -> None:
    rig = operated
    before = settled(rig)
    rig.kubelet.waited = 61
    rig.patch({"replicas": 3})
    eventually("a pod without room", lambda: degraded(rig) == ("True", "Unschedulable"), 30, rig.explain)
    change(rig, 8)
    eventually("the roll to go on in place", lambda: pace(rig) == (IN_PLACE, True), 30, rig.explain)
    holds("both that run are kept", lambda: before < uids(rig), 4)
    rig.patch({"replicas": 2})
    eventually("the roll to be over", lambda: rolled(rig, "--max-requests=8"), 60, rig.explain)


@pytest.mark.long
def test_a_revision_that_is_never_ready_takes_no_good_pod_down_and_is_left_by_a_good_one(operated: Rig) -> None:
    rig = operated
    before = settled(rig)
    rig.kubelet.room = 3
    rig.kubelet.starts = lambda pod: "--max-requests=8" not in pod["spec"]["containers"][0]["args"]
    change(rig, 8)
    eventually("a pod of the bad revision", lambda: of(rig, "--max-requests=8"), 30, rig.explain)
    holds("the good ones stay", lambda: before < uids(rig), 3)
    change(rig, 16)
    eventually("the third revision everywhere", lambda: rolled(rig, "--max-requests=16"), 60, rig.explain)
