"""With a surge or in place: when Auto goes over, and that it neither wavers during the roll nor outlasts it."""

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvik_operator.crd.inferencepool import RolloutStrategy
from kvik_operator.names import ANNOTATION_ROLL_IN_PLACE, ChildKind
from kvik_operator.reconcile.observe import observe
from kvik_operator.reconcile.rollout import IN_PLACE, SURGE, in_place_since_no_room, never_fits, pace
from kvik_operator.reconcile.types import Observed
from tests.support.fake_cluster import FakeCluster
from tests.support.pools import (
    KEY,
    NOW,
    TEMPLATE_HASH,
    make_deployment,
    make_pod,
    make_pool,
    terminating,
    unschedulable,
)

AUTO = RolloutStrategy.AUTO
NO_GPU = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu. preemption: 0/3 nodes are available: "
FULL = f"{NO_GPU}3 No preemption victims found for incoming pod."
NOWHERE = (
    "0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector. "
    "preemption: 0/3 nodes are available: 3 Preemption is not helpful for scheduling."
)
OLD = make_pod("old", ready=True, template_hash="older")
OTHER = make_pod("other", ready=True, template_hash="older")
WAITS = unschedulable("new", FULL, for_seconds=60)
LATELY = unschedulable("new", FULL, for_seconds=59)


def seen(*pods: dict[str, Any], deployed: dict[str, Any] | None = None, room_made: float | None = None) -> Observed:
    """A roll to the Deployment's template; `room_made`: a pod was ending until so many seconds ago."""
    cluster = FakeCluster(make_pool())
    if deployed is None:
        deployed = make_deployment(2, replicas=3, updatedReplicas=1, availableReplicas=2)
    cluster.children[ChildKind.DEPLOYMENT] = deployed
    cluster.engine_pods = list(pods)
    assert cluster.stored_pool is not None
    observed = observe(KEY, cluster.stored_pool, cluster, NOW)
    if room_made is None:
        return observed
    return Observed(**{**fields(observed), "room_made": NOW - timedelta(seconds=room_made)})


def fields(observed: Observed) -> dict[str, Any]:
    return {name: getattr(observed, name) for name in Observed.__slots__}


def switched(deployed: dict[str, Any], to: str = TEMPLATE_HASH) -> dict[str, Any]:
    deployed["metadata"]["annotations"] = {ANNOTATION_ROLL_IN_PLACE: to}
    return deployed


def goes_in_place(observed: Observed) -> bool:
    chosen = pace(AUTO, TEMPLATE_HASH, observed)
    in_place = (chosen.max_surge, chosen.max_unavailable) == (IN_PLACE.max_surge, IN_PLACE.max_unavailable)
    assert chosen.switched_for == (TEMPLATE_HASH if in_place else None)
    assert in_place or chosen == SURGE
    return in_place


@pytest.mark.parametrize(
    ("why", "observed", "want"),
    [
        ("no node has room", seen(OLD, OTHER, WAITS), True),
        ("not for long enough", seen(OLD, OTHER, LATELY), False),
        ("on its way", seen(OLD, OTHER, make_pod("new", sandbox=False)), False),
        ("it fails", seen(OLD, OTHER, make_pod("new", engine={"state": {"waiting": {"reason": "x"}}})), False),
        ("an old one is ending", seen(OLD, terminating(OTHER), WAITS), False),
        ("one was ending until now", seen(OLD, OTHER, WAITS, room_made=14), False),
        ("one ended a while ago", seen(OLD, OTHER, WAITS, room_made=15), True),
        ("one should have ended long ago", seen(OLD, terminating(OTHER, overdue=31), WAITS), True),
        ("it fits nowhere", seen(OLD, OTHER, unschedulable("new", NOWHERE, for_seconds=600)), False),
        ("no older pod is left", seen(make_pod("a", ready=True), WAITS), False),
        ("an old pod waits, too", seen(OLD, unschedulable("older", FULL, 600, template_hash="older")), False),
        ("nothing runs", seen(), False),
        ("the old ones crash", seen(make_pod("old", template_hash="older"), WAITS), True),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_auto_goes_over_when_an_old_pod_holds_the_room_of_a_new_one(why: str, observed: Observed, want: bool) -> None:
    """LLMKube #192, kserve #4188: a surge pod waited for ever on a cluster that was full."""
    assert goes_in_place(observed) is want, why


@pytest.mark.parametrize("observed", [seen(OLD, OTHER, WAITS), seen(OLD), seen()], ids=["full", "rolls", "empty"])
def test_surge_never_goes_over_and_in_place_begins_there(observed: Observed) -> None:
    assert pace(RolloutStrategy.SURGE, TEMPLATE_HASH, observed) == SURGE
    assert pace(RolloutStrategy.IN_PLACE, TEMPLATE_HASH, observed) == IN_PLACE


def test_a_pool_without_a_deployment_begins_with_a_surge() -> None:
    cluster = FakeCluster(make_pool())
    assert cluster.stored_pool is not None
    assert not goes_in_place(observe(KEY, cluster.stored_pool, cluster, NOW))


def rolling(**status: int) -> dict[str, Any]:
    counts = {"replicas": 2, "updatedReplicas": 1, "availableReplicas": 1}
    return switched(make_deployment(2, **{**counts, **status}))


@pytest.mark.parametrize(
    ("why", "observed"),
    [
        ("the new one starts", seen(OLD, make_pod("new"), deployed=rolling())),
        ("the new one is ready", seen(OLD, make_pod("new", ready=True), deployed=rolling())),
        ("the next old one is ending", seen(terminating(OLD), make_pod("new", ready=True), deployed=rolling())),
        ("an operator has just started and knows no pod", seen(deployed=rolling())),
        (
            "the last new one waits for the room of the last old one",
            seen(terminating(OLD), make_pod("a", ready=True), make_pod("b"), deployed=rolling(updatedReplicas=2)),
        ),
        ("replicas were changed", seen(OLD, deployed=rolling(observedGeneration=0, updatedReplicas=2))),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_roll_goes_on_in_place_whatever_comes(why: str, observed: Observed) -> None:
    assert goes_in_place(observed), why


def test_it_ends_with_the_roll() -> None:
    new = [make_pod("a", ready=True), make_pod("b", ready=True)]
    over = rolling(updatedReplicas=2, availableReplicas=2)
    assert not goes_in_place(seen(*new, deployed=over))
    assert not goes_in_place(seen(*new, unschedulable("c", FULL, 600), deployed=over))
    assert not goes_in_place(seen(deployed=rolling(replicas=0, updatedReplicas=0, availableReplicas=0))), "stopped"


def test_the_next_roll_begins_with_a_surge() -> None:
    """Whether the Deployment was told of it already or is only about to be."""
    assert not goes_in_place(seen(OLD, make_pod("new"), deployed=switched(make_deployment(2), to="older")))
    before = rolling()
    assert pace(AUTO, "newer", seen(OLD, WAITS, deployed=before)) == SURGE


def test_a_roll_that_was_in_place_by_choice_did_not_go_over() -> None:
    assert not goes_in_place(seen(OLD, make_pod("new"), deployed=make_deployment(2, replicas=2, updatedReplicas=1)))


@pytest.mark.parametrize(
    ("message", "want"),
    [
        (FULL, False),
        (NOWHERE, True),
        (f"{NO_GPU}1 No preemption victims found for incoming pod, 2 Preemption is not helpful for scheduling.", False),
        (
            "0/1 nodes are available: 1 Insufficient memory. preemption: not eligible due to preemptionPolicy=Never.",
            False,
        ),
        ("", False),
    ],
)
def test_what_fits_nowhere_is_what_the_scheduler_says(message: str, want: bool) -> None:
    assert never_fits(message) is want


PODS = st.lists(
    st.builds(
        lambda kind, old, number: {
            "ready": make_pod(f"p{number}", ready=True, template_hash="older" if old else TEMPLATE_HASH),
            "loads": make_pod(f"p{number}", template_hash="older" if old else TEMPLATE_HASH),
            "waits": unschedulable(f"p{number}", FULL, 90, template_hash="older" if old else TEMPLATE_HASH),
            "ending": terminating(make_pod(f"p{number}", template_hash="older" if old else TEMPLATE_HASH)),
        }[kind],
        st.sampled_from(["ready", "loads", "waits", "ending"]),
        st.booleans(),
        st.integers(0, 9),
    ),
    max_size=6,
)


@given(looks=st.lists(PODS, min_size=1, max_size=6))
def test_once_gone_over_it_stays_until_no_old_pod_is_left(looks: list[list[dict[str, Any]]]) -> None:
    """What a look decides is all that the next one knows, as after a restart of the operator between any two."""
    deployed = make_deployment(2, replicas=3, updatedReplicas=1, availableReplicas=2)
    for pods in looks:
        before = in_place_since_no_room(deployed)
        old = [pod for pod in pods if pod["metadata"]["labels"]["kvik.dev/template-hash"] == "older"]
        old_live = [pod for pod in old if "deletionTimestamp" not in pod["metadata"]]
        deployed["status"] |= dict.fromkeys(("updatedReplicas", "availableReplicas"), 1 if old_live else 3)
        in_place = goes_in_place(seen(*pods, deployed=deployed))
        assert not in_place or old_live
        assert not (before and old_live) or in_place
        assert before or not in_place or not any("deletionTimestamp" in pod["metadata"] for pod in pods)
        deployed["metadata"]["annotations"] = {ANNOTATION_ROLL_IN_PLACE: TEMPLATE_HASH} if in_place else {}
