"""Upgrades of the operator on a real API server: pods change with their pool's spec, and for no other reason."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from tests.support.kubectl import condition as condition_of
from tests.support.operator_process import ENGINE_IMAGE
from tests.support.operator_rig import COLLECTED_WITHIN, Rig, eventually, holds

pytestmark = pytest.mark.timeout(600)

OLD = f"{ENGINE_IMAGE}-cpu"
NEW = "kvik.test/engine:0.2.0-cpu"
UPGRADED = (f"--engine-image-cpu={NEW}", "--image-pull-policy=Always", "--hf-endpoint=https://hub.test")
"""The flags that a newer chart gives the operator: each of them would render other pods."""

Object = Mapping[str, Any]


def engine(rig: Rig) -> Object:
    """status.engine; empty before it is written."""
    found: Object = ((rig.pool() or {}).get("status") or {}).get("engine") or {}
    return found


def condition(rig: Rig, kind: str) -> Mapping[str, str]:
    """Of the pool's status; empty before it is written."""
    return condition_of(rig.pool(), kind) or {}


def running(rig: Rig) -> tuple[Any, ...]:
    """What must stay: the pods themselves, and what the Deployment asks for."""
    deployment = rig.deployment() or {"metadata": {}, "spec": {}}
    uids = sorted(pod["metadata"]["uid"] for pod in rig.pods())
    return uids, deployment["metadata"].get("generation"), deployment["spec"].get("template")


def pods_and_template(rig: Rig) -> tuple[Any, ...]:
    """As `running`, where the Deployment is written once with the same template, which counts as a generation."""
    replica_sets = rig.listed("replicasets.apps")
    uids, _, template = running(rig)
    return uids, template, len(replica_sets)


def upgrade(rig: Rig) -> None:
    """The operator ends and one with another engine starts; returns when it has looked at the pool."""
    stop(rig)
    forget(rig, "engine")
    rig.operator(*UPGRADED)
    eventually(
        "the new operator to tell of its engine", lambda: engine(rig).get("available") == "0.2.0", 30, rig.explain
    )


def settled(rig: Rig) -> None:
    """A pool of two pods that an operator has brought up, and whose roll is complete."""
    rig.operator()
    rig.create(replicas=2)
    rig.wait_ready()
    eventually(
        "the roll to be told", lambda: condition(rig, "RolloutComplete").get("status") == "True", 30, rig.explain
    )


def stop(rig: Rig) -> None:
    for operator, _ in rig.started:
        if operator.exit_status() is None:
            assert operator.terminate() == 0


def forget(rig: Rig, *fields: str) -> None:
    """Take these fields out of the pool's status."""
    patch = json.dumps({"status": dict.fromkeys(fields)})
    rig.kubectl("patch", "inferencepools.kvik.dev/chat", "--subresource=status", "--type=merge", f"--patch={patch}")


def rolled_to(rig: Rig, image: str) -> bool:
    images = {pod["spec"]["containers"][0]["image"] for pod in rig.pods()}
    return images == {image} and condition(rig, "RolloutComplete").get("status") == "True" and rig.ready()


def test_an_operator_with_another_engine_rolls_nothing_until_the_spec_names_it(operated: Rig) -> None:
    """kserve PR #5085, odh PR #1435, kthena #1803, LLMKube #196: an operator upgrade restarted all that served."""
    rig = operated
    settled(rig)
    before = running(rig)
    upgrade(rig)
    holds("pods and Deployment stay as they are", lambda: running(rig) == before, 5)
    assert engine(rig)["image"] == OLD

    # Nor does scaling, for which the Deployment is written.
    rig.patch({"replicas": 3})
    eventually("a third pod", lambda: len(rig.pods()) == 3, 30, rig.explain)
    rig.wait_ready()
    uids, _, template = running(rig)
    assert set(before[0]) < set(uids)
    assert template == before[2]

    (first,) = rig.revisions()
    rig.patch({"engine": {"version": "0.2.0"}})
    eventually("all pods to run the new engine", lambda: rolled_to(rig, NEW), 60, rig.explain)
    eventually("the status to say so", lambda: engine(rig).get("image") == NEW, 30, rig.explain)
    assert "available" not in engine(rig)
    old, new = rig.revisions()
    assert old["metadata"]["name"] == first["metadata"]["name"]

    # The old spec again is what ran then, engine and all.
    rig.patch({"engine": None})
    eventually("all pods to run the old engine again", lambda: rolled_to(rig, OLD), 60, rig.explain)
    assert [one["metadata"]["name"] for one in rig.revisions()] == [new["metadata"]["name"], old["metadata"]["name"]]
    revision = (rig.pool() or {})["status"]["revision"]
    assert revision["updated"] == old["metadata"]["name"]
    rig.delete()
    eventually("no revision to be left", rig.cleared, COLLECTED_WITHIN)


def test_a_change_of_the_spec_keeps_the_engine_and_says_what_it_lacks(operated: Rig) -> None:
    rig = operated
    settled(rig)
    upgrade(rig)
    rig.patch({"batching": {"maxRequests": 8}})
    eventually("the change to arrive", lambda: arrived(rig, "--max-requests=8"), 60, rig.explain)
    assert (engine(rig)["image"], engine(rig)["available"]) == (OLD, "0.2.0")
    before = pods_and_template(rig)

    # The version that runs is no news.
    rig.patch({"engine": {"version": "0.1.0"}})
    eventually("a revision with the name", lambda: len(rig.revisions()) == 3, 30, rig.explain)
    holds("pods and template stay as they are", lambda: pods_and_template(rig) == before, 3)

    # One from before any flag is told none, and the pool is told which field is not in effect.
    rig.patch({"engine": {"version": "0.0.9"}})
    eventually(
        "what the engine lacks to be told",
        lambda: condition(rig, "Degraded").get("reason") == "EngineTooOld",
        30,
        rig.explain,
    )
    assert "spec.batching.maxRequests needs engine 0.1.0" in condition(rig, "Degraded")["message"]
    eventually("pods of that engine", lambda: rolled_to(rig, "kvik.test/engine:0.0.9-cpu"), 60, rig.explain)
    assert all(pod["spec"]["containers"][0]["args"] == ["serve", "/models/x/model.gguf"] for pod in rig.pods())


def test_an_operator_whose_image_names_no_version_refuses_to_choose_one(operated: Rig) -> None:
    rig = operated
    rig.operator("--engine-image-cpu=kvik.test/engine:nightly")
    rig.create(replicas=2)
    rig.wait_ready()
    before = running(rig)
    rig.patch({"engine": {"version": "0.2.0"}})
    eventually(
        "the field to be named",
        lambda: "spec.engine.version: " in condition(rig, "Degraded").get("message", ""),
        30,
        rig.explain,
    )
    assert condition(rig, "Degraded")["reason"] == "InvalidSpec"
    assert running(rig) == before
    rig.patch({"engine": None})
    eventually("all to be well", lambda: condition(rig, "Degraded").get("status") == "False", 30, rig.explain)
    assert running(rig) == before


def test_a_pool_from_before_revisions_is_adopted_without_a_roll(operated: Rig) -> None:
    rig = operated
    settled(rig)
    before = pods_and_template(rig)
    stop(rig)
    rig.kubectl("delete", "controllerrevisions.apps", "-lkvik.dev/pool=chat")
    forget(rig, "revision")
    upgrade(rig)
    holds("pods and template stay as they are", lambda: pods_and_template(rig) == before, 5)
    (revision,) = rig.revisions()
    assert revision["data"]["image"] == OLD
    upgrade(rig)
    holds("nor does the next operator change them", lambda: pods_and_template(rig) == before, 3)
    assert [one["metadata"]["name"] for one in rig.revisions()] == [revision["metadata"]["name"]]


@pytest.mark.long
def test_a_corrupt_revision_is_replaced_without_a_roll(operated: Rig) -> None:
    """`data` cannot be changed, but its object can be deleted and made anew with other content."""
    rig = operated
    settled(rig)
    before = pods_and_template(rig)
    stop(rig)
    (revision,) = rig.revisions()
    other = forged(revision)
    with pytest.raises(RuntimeError, match="immutable"):
        rig.kubectl("replace", "-f", "-", stdin=json.dumps({**other, "metadata": dict(revision["metadata"])}))
    rig.kubectl("delete", f"controllerrevisions.apps/{revision['metadata']['name']}")
    rig.kubectl("create", "-f", "-", stdin=json.dumps(other))
    upgrade(rig)
    holds("pods and template stay as they are", lambda: pods_and_template(rig) == before, 3)
    (mended,) = rig.revisions()
    assert mended["data"]["image"] == OLD


@pytest.mark.long
def test_somebody_elses_revision_in_the_way_is_told_and_left_alone(operated: Rig) -> None:
    rig = operated
    settled(rig)
    rig.patch({"batching": {"maxRequests": 8}})
    eventually("the second revision to be rolled out", lambda: arrived(rig, "--max-requests=8"), 60, rig.explain)
    rig.patch({"batching": None})
    eventually("the first one to be rolled out again", lambda: arrived(rig, "--max-requests=32"), 60, rig.explain)
    stop(rig)
    before = running(rig)
    second, _ = rig.revisions()
    name = second["metadata"]["name"]
    rig.kubectl("delete", f"controllerrevisions.apps/{name}")
    theirs = {**forged(second), "metadata": {"name": name}, "data": {"of": "somebody else"}}
    rig.kubectl("create", "-f", "-", stdin=json.dumps(theirs))
    rig.patch({"batching": {"maxRequests": 8}})
    rig.operator()
    eventually("the name to be told", lambda: name in condition(rig, "Degraded").get("message", ""), 30, rig.explain)
    holds("nothing that runs is touched", lambda: running(rig) == before, 3)
    assert condition(rig, "Ready").get("status") == "True"
    kept = json.loads(rig.kubectl("get", f"controllerrevisions.apps/{name}", "-ojson"))
    assert (kept["data"], kept["metadata"].get("ownerReferences")) == ({"of": "somebody else"}, None)
    rig.kubectl("delete", f"controllerrevisions.apps/{name}")
    eventually("the change to arrive after all", lambda: arrived(rig, "--max-requests=8"), 60, rig.explain)


def arrived(rig: Rig, argument: str) -> bool:
    """All pods have this argument, and the status says that the roll is complete and nothing is wrong."""
    pods = rig.pods()
    complete, degraded = condition(rig, "RolloutComplete"), condition(rig, "Degraded")
    return (
        len(pods) == 2
        and all(argument in pod["spec"]["containers"][0]["args"] for pod in pods)
        and (complete.get("status"), degraded.get("status")) == ("True", "False")
        and rig.ready()
    )


def forged(revision: Object) -> dict[str, Any]:
    """Another object of this name, with our label and other content."""
    metadata = {"name": revision["metadata"]["name"], "labels": revision["metadata"]["labels"]}
    data = {**revision["data"], "image": "evil.test/engine:1"}
    return {"apiVersion": "apps/v1", "kind": "ControllerRevision", "metadata": metadata, "data": data, "revision": 7}
