"""Which revision a pool is at, what is made, and what is deleted."""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvik_operator.errors import PoolError
from kvik_operator.names import LABEL_POOL, LABEL_TEMPLATE_HASH, Reason
from kvik_operator.objects.controller_revision import controller_revision
from kvik_operator.objects.engine_image import EngineImage
from kvik_operator.reconcile.revisions import HISTORY, has_revision, stays_at, with_values_of
from kvik_operator.reconcile.types import RevisionPlan
from tests.support.pool_history import OLD, History, seen
from tests.support.pools import KEY, NOW, UID, make_deployment, make_pod, terminating

NEW = EngineImage("kvik/engine:2", "Always", "https://mirror.test")
Object = dict[str, Any]
NOBODYS: Object = {"ownerReferences": [], "labels": {}}


def names(objects: Sequence[Any]) -> list[str]:
    return [obj["metadata"]["name"] for obj in objects]


def test_a_new_pool_is_rendered_and_stored() -> None:
    plan = History().plan(seen())
    (manifest,) = plan.write
    assert (plan.use.image, manifest["revision"], manifest["metadata"]["name"]) == ("kvik/engine:1", 1, plan.use.name)
    assert manifest["data"]["template"] == plan.use.template


def test_another_engine_image_changes_nothing_while_the_pool_asks_for_nothing() -> None:
    """kserve PR #5085, kthena #1803: an upgrade of the operator rolled every workload."""
    history = History()
    first = history.go(seen())
    again = history.go(seen(replicas=7, scaling={"maxReplicas": 9}, rollout={"strategy": "InPlace"}, generation=8), NEW)
    assert again == replace(first, write=(), delete=())


def test_a_change_of_the_pool_brings_the_engine_of_today() -> None:
    history = History()
    first = history.go(seen())
    second = history.go(seen(batching={"maxRequests": 8}), NEW)
    assert second.use.image == "kvik/engine:2"
    assert history.numbers() == {first.use.name: 1, second.use.name: 2}


def test_the_old_spec_is_the_old_revision_again() -> None:
    history = History()
    first = history.go(seen())
    second = history.go(seen(batching={"maxRequests": 8}), NEW)
    back = history.go(seen(), NEW)
    assert (back.use, back.delete) == (first.use, ())
    assert history.numbers() == {first.use.name: 3, second.use.name: 2}
    assert history.plan(seen(), NEW).write == ()


def test_only_what_pods_depend_on_makes_a_revision() -> None:
    plan = History().plan(seen())
    assert stays_at(plan.use, seen(replicas=0, scaling={"maxReplicas": 2}, rollout={"strategy": "Surge"}, slo={}))
    assert not stays_at(plan.use, seen(drain={"timeout": "9s"}))


def test_the_values_in_effect_are_the_revisions_but_for_scaling() -> None:
    history = History()
    history.go(seen())
    (stored,) = history.stored.values()
    assert stored["data"]["effective"]["drain_timeout"] == "PT120S"
    plan = history.plan(seen(scaling={"maxReplicas": 3}))
    # As if the class had had another time-out when the revision was made.
    then = replace(plan.use, effective=replace(plan.use.effective, drain_timeout=NOW - NOW))
    observed = with_values_of(seen(scaling={"maxReplicas": 3}), then)
    assert observed.effective.drain_timeout == NOW - NOW
    assert observed.effective.scaling is not None
    assert observed.effective.scaling.max_replicas == 3


# --- pools from before revisions ---


def applied_deployment(*, annotations: Object | None = None, **pool: Any) -> Object:
    """As the API server shows what an earlier operator applied: with defaults of its own."""
    template: Object = deepcopy(dict(History().plan(seen(**pool)).use.template))
    template["metadata"]["creationTimestamp"] = None
    template["metadata"]["annotations"] = annotations or {}
    template["spec"]["dnsPolicy"] = "ClusterFirst"
    deployment = make_deployment()
    deployment["metadata"]["labels"] = {LABEL_POOL: KEY.name}
    deployment["spec"]["template"] = template
    return deployment


def told(generation: int = 1, **reasons: str) -> Object:
    conditions = [{"type": type_, "status": "False", "reason": reason} for type_, reason in reasons.items()]
    return {"observedGeneration": generation, "conditions": conditions}


def test_what_runs_becomes_the_first_revision_of_a_pool_that_has_none() -> None:
    restarted = {"kubectl.kubernetes.io/restartedAt": "2026-05-01T00:00:00Z"}
    observed = seen(deployment=applied_deployment(annotations=restarted), status=told(Ready="PodsReady"))
    history = History()
    plan = history.go(observed, NEW)
    assert plan.use.image == "kvik/engine:1"
    assert plan.use.template["spec"]["dnsPolicy"] == "ClusterFirst"
    assert plan.use.template["metadata"]["annotations"] == restarted
    assert "creationTimestamp" not in plan.use.template["metadata"]
    assert history.plan(observed, NEW) == RevisionPlan(plan.use)


@pytest.mark.parametrize(
    "status",
    [
        {},
        told(generation=0),
        told(Degraded="InvalidSpec"),
        told(Degraded="ApplyRefused", RolloutComplete="ApplyRefused"),
        told(RolloutComplete="Starting"),
    ],
    ids=["no status", "changed since", "invalid", "refused", "waiting"],
)
def test_what_runs_is_no_revision_of_a_spec_that_it_was_not_made_from(status: Object) -> None:
    observed = seen(deployment=applied_deployment(), status=status)
    assert History().plan(observed, NEW).use.image == "kvik/engine:2"


def test_what_runs_is_the_revision_where_replicas_alone_have_changed_since_status_was_written() -> None:
    """`kubectl scale` or an HPA, just before the operator is replaced: no reason to roll."""
    observed = seen(deployment=applied_deployment(), status=told(generation=1), generation=2, replicas=3)
    assert History().plan(observed, EngineImage("kvik/engine:2", "IfNotPresent")).use.image == "kvik/engine:1"


def test_nor_is_the_deployment_of_somebody_else_or_of_an_earlier_pool() -> None:
    foreign, earlier, alien = applied_deployment(), applied_deployment(), applied_deployment()
    foreign["metadata"]["labels"] = {}
    earlier["metadata"]["ownerReferences"] = [
        {"kind": "InferencePool", "name": KEY.name, "uid": "earlier", "controller": True}
    ]
    alien["spec"]["template"]["spec"]["containers"] = [{"name": "web", "image": "nginx"}]
    for deployment in (foreign, earlier, alien):
        assert History().plan(seen(deployment=deployment, status=told()), NEW).use.image == "kvik/engine:2"


# --- what others did to them ---


def test_a_deleted_revision_is_made_again_from_what_runs() -> None:
    history = History()
    history.go(seen())
    history.stored.clear()
    again = history.go(seen(deployment=applied_deployment(), status=told()), NEW)
    assert again.use.image == "kvik/engine:1"
    assert len(history.stored) == 1


@pytest.mark.parametrize("data", [None, "x", {}, {"spec": {}, "template": {}, "effective": {}, "image": "i"}])
def test_a_corrupt_revision_is_replaced_without_a_roll(data: Any) -> None:
    history = History()
    name = history.go(seen()).use.name
    history.stored[name]["data"] = data
    plan = history.go(seen(deployment=applied_deployment(), status=told()), NEW)
    assert names(plan.delete) == [name]
    assert plan.use.image == "kvik/engine:1"
    assert history.plan(seen(), NEW) == RevisionPlan(plan.use)


@pytest.mark.parametrize("number", [None, "1", 0, -1, 2**63 - 1])
def test_a_revision_with_an_odd_number_is_replaced(number: object) -> None:
    history = History()
    name = history.go(seen()).use.name
    history.stored[name]["revision"] = number
    assert names(history.go(seen()).delete) == [name]
    assert history.numbers() == {name: 1}


def test_one_of_a_spec_that_this_version_cannot_read_stays() -> None:
    history = History()
    first = history.go(seen())
    other = History()
    other.go(seen())
    (stored,) = other.stored.values()
    newer = controller_revision(KEY, UID, {**stored["data"], "spec": {"model": ["of", "a", "newer", "version"]}}, 5)
    history.stored[newer["metadata"]["name"]] = {**newer, "metadata": {**newer["metadata"], "uid": "u"}}
    plan = history.go(seen())
    assert (plan.use, plan.delete) == (first.use, ())
    assert max(history.numbers().values()) == history.numbers()[first.use.name] == 6


def test_somebody_elses_are_left_alone_and_one_in_the_way_is_named() -> None:
    history = History()
    name = history.go(seen()).use.name
    stateful = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "db", "uid": "db", "controller": True}
    history.stored[name]["metadata"]["ownerReferences"] = [stateful]
    history.stored["db-1"] = {"metadata": {"name": "db-1", "ownerReferences": [stateful], "labels": {}}}
    plan = history.plan(seen())
    assert (plan.write, plan.delete) == ((), ())
    assert plan.blocked is not None
    assert plan.blocked.reason is Reason.FOREIGN_OBJECT
    assert name in plan.blocked.message


def test_that_of_an_earlier_pool_is_waited_for() -> None:
    history = History()
    name = history.go(seen()).use.name
    history.stored[name]["metadata"]["ownerReferences"][0]["uid"] = "earlier"
    going = history.plan(seen()).blocked
    assert going is not None
    assert (going.reason, going.message) == (
        Reason.STARTING,
        f"waiting until the old ControllerRevision {name} is gone",
    )
    history.stored[name] = terminating(history.stored[name])
    assert history.plan(seen()).blocked == going


def test_orphans_of_a_pool_that_was_made_again_get_an_owner() -> None:
    """`kubectl delete --cascade=orphan`: without one they would stay for ever."""
    history = History()
    history.go(seen(batching={"maxRequests": 8}))
    history.go(seen())
    for obj in history.stored.values():
        obj["metadata"]["ownerReferences"] = []
    assert len(history.go(seen(), NEW).write) == 2
    assert all(obj["metadata"]["ownerReferences"][0]["uid"] == UID for obj in history.stored.values())


# --- how many ---


def test_ten_are_kept() -> None:
    history = History()
    plans = [history.go(seen(batching={"maxRequests": n})) for n in range(1, 15)]
    assert list(history.stored) == [plan.use.name for plan in plans[-HISTORY:]]


def test_one_that_pods_are_left_of_is_kept_beside_them() -> None:
    history = History()
    first = history.go(seen(batching={"maxRequests": 1}))
    running = make_pod(template_hash=first.use.template["metadata"]["labels"][LABEL_TEMPLATE_HASH])
    for n in range(2, 15):
        history.go(seen(batching={"maxRequests": n}, pods=[running]))
    assert first.use.name in history.stored
    assert len(history.stored) == HISTORY + 1
    history.go(seen(batching={"maxRequests": 14}))
    assert first.use.name not in history.stored


@given(asks=st.lists(st.tuples(st.integers(1, 14), st.sampled_from([OLD, NEW])), max_size=40))
def test_whatever_is_asked_for_the_revision_in_use_is_stored_last_and_stays(
    asks: list[tuple[int, EngineImage]],
) -> None:
    history = History()
    for requests, image in asks:
        observed = seen(batching={"maxRequests": requests})
        before = dict(history.stored)
        plan = history.go(observed, image)
        numbers = history.numbers()
        assert numbers[plan.use.name] == max(numbers.values())
        assert len(set(numbers.values())) == len(numbers) <= HISTORY
        assert plan.use.image == (
            before[plan.use.name]["data"]["image"] if has_revision(list(before.values()), observed) else image.reference
        )
        assert history.plan(observed, NEW) == RevisionPlan(plan.use)


def test_a_source_that_cannot_be_rendered_is_told() -> None:
    with pytest.raises(PoolError):
        History().plan(seen(model={"source": "ftp://x"}))
