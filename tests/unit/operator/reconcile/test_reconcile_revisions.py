"""The whole flow over an API server in memory: an engine or a spec that changes, and the ControllerRevisions kept."""

from copy import deepcopy
from typing import Any

import pytest

from kvik_operator.errors import ClusterError, NotFound, Refused, Unavailable
from kvik_operator.names import ChildKind
from kvik_operator.reconcile.reconcile import LOOK_AGAIN_SOON, WATCH_CLOSELY
from kvik_operator.reconcile.types import EngineImages, EngineInfo, ReconcileOptions
from tests.support.pools import make_pod
from tests.support.reconciled_pool import Operator, refused


def engine(version: int) -> ReconcileOptions:
    """The options of an operator that brings this engine."""
    return ReconcileOptions(images=EngineImages(gpu=f"kvik/engine:{version}", cpu=f"kvik/engine:{version}-cpu"))


def template(operator: Operator) -> Any:
    return operator.cluster.children[ChildKind.DEPLOYMENT]["spec"]["template"]


def image(operator: Operator) -> str:
    name: str = template(operator)["spec"]["containers"][0]["image"]
    return name


async def test_an_operator_with_another_engine_writes_nothing_but_that_it_has_one() -> None:
    """kserve PR #5085, kthena #1803: upgrading the operator rolled everything that served."""
    operator = Operator()
    await operator.settle()
    before = deepcopy(operator.cluster.children)
    operator.restart(engine(2))
    await operator.look()
    assert operator.cluster.writes() == ["patch_status"]
    assert operator.cluster.children == before
    assert operator.cluster.status["engine"] == {"image": "kvik/engine:1", "available": "kvik/engine:2"}
    operator.change(replicas=2)
    await operator.look()
    assert (operator.replicas(), image(operator)) == (2, "kvik/engine:1")


async def test_a_change_of_the_spec_brings_the_engine_and_undoing_it_brings_back_the_old_one() -> None:
    operator = Operator()
    await operator.settle()
    first, before = template(operator), operator.cluster.status["revision"]
    assert before["current"] == before["updated"]
    operator.restart(engine(2))
    operator.change(batching={"maxRequests": 8})
    await operator.look()
    assert image(operator) == "kvik/engine:2"
    assert operator.cluster.status["engine"] == {"image": "kvik/engine:2"}
    after = operator.cluster.status["revision"]
    assert after["current"] == before["current"] != after["updated"]
    await operator.settle()
    assert operator.cluster.status["revision"]["current"] == after["updated"]
    operator.change(batching={})
    await operator.look()
    assert template(operator) == first
    assert operator.cluster.status["revision"]["updated"] == before["updated"]


async def test_the_version_is_what_the_pods_of_the_new_revision_say() -> None:
    operator = Operator()
    await operator.settle()
    assert "version" not in operator.cluster.status["engine"]
    own = template(operator)["metadata"]["labels"]["kvik.dev/template-hash"]
    operator.cluster.engine_pods = [make_pod("old", ready=True), make_pod("new", ready=True, template_hash=own)]
    operator.cluster.infos = {"uid-old": EngineInfo("0.1.0", "chat"), "uid-new": EngineInfo("0.2.0", "chat")}
    await operator.look()
    assert operator.cluster.status["engine"]["version"] == "0.2.0"
    operator.cluster.infos = {}
    operator.restart(engine(2))
    await operator.look()
    assert operator.cluster.status["engine"]["version"] == "0.2.0", "of the same image"
    operator.change(batching={"maxRequests": 8})
    await operator.look()
    assert "version" not in operator.cluster.status["engine"]


async def test_a_pool_from_before_revisions_is_not_rolled() -> None:
    operator = Operator()
    await operator.settle()
    operator.cluster.revisions.clear()
    del operator.cluster.status["revision"], operator.cluster.status["engine"]
    before = deepcopy(template(operator))
    operator.restart(engine(2))
    await operator.look()
    assert operator.cluster.writes() == ["apply ControllerRevision", "patch_status"]
    assert template(operator) == before
    await operator.look()
    assert operator.cluster.writes() == []


async def test_nor_while_the_operator_has_not_heard_of_its_deployment_yet() -> None:
    operator = Operator()
    await operator.settle()
    operator.cluster.revisions.clear()
    operator.cluster.unseen = operator.cluster.children
    operator.cluster.children = {}
    operator.restart(engine(2))
    await operator.look()
    assert operator.cluster.writes() == ["apply ControllerRevision", "patch_status"]
    assert operator.cluster.status["engine"]["image"] == "kvik/engine:1"


async def test_a_revision_that_somebody_deleted_is_made_again() -> None:
    operator = Operator()
    await operator.settle()
    (name,) = operator.cluster.revisions
    operator.cluster.revisions.clear()
    before = deepcopy(template(operator))
    await operator.look(after=301)
    assert list(operator.cluster.revisions) == [name]
    assert template(operator) == before


async def test_a_settled_pool_reads_its_revisions_once_in_five_minutes() -> None:
    operator = Operator()
    await operator.settle()
    operator.cluster.calls.clear()
    for _ in range(11):
        await operator.look(after=60)
    assert operator.cluster.calls == ["list ControllerRevisions"] * 2


@pytest.mark.parametrize("call", ["list", "apply"])
async def test_without_the_right_to_keep_revisions_nothing_is_rolled_and_the_status_says_so(call: str) -> None:
    """The operator is newer than the chart that it was installed by."""
    operator = Operator()
    await operator.settle()
    before = deepcopy(operator.cluster.children)
    status = deepcopy(operator.cluster.status)
    operator.restart(engine(2))
    operator.change(batching={"maxRequests": 8})
    verb = {"list": "list", "apply": "patch"}[call]
    denied = Refused(call, 403, "Forbidden", f'User "kvik" cannot {verb} resource "controllerrevisions"')
    operator.cluster.failures[f"{call} ControllerRevision{'s' if call == 'list' else ''}"] = denied
    assert await operator.look() == WATCH_CLOSELY
    assert operator.cluster.children == before
    assert operator.cluster.condition("Degraded")["reason"] == "AccessDenied"
    assert operator.cluster.condition("Ready")["status"] == "True"
    for field in ("revision", "engine", "effective"):
        assert operator.cluster.status[field] == status[field]
    operator.cluster.failures.clear()
    await operator.look()
    assert image(operator) == "kvik/engine:2"
    assert operator.cluster.condition("Degraded")["status"] == "False"


async def test_a_namespace_that_is_full_is_told() -> None:
    operator = Operator()
    full = refused("exceeded quota: q, requested: count/controllerrevisions.apps=1")
    operator.cluster.failures["apply ControllerRevision"] = full
    await operator.look()
    assert operator.cluster.condition("Ready")["reason"] == "QuotaExceeded"
    assert operator.cluster.children == {}


@pytest.mark.parametrize(
    "failure",
    [
        Unavailable("delete", 500, "InternalError", "failed calling webhook"),
        Refused("delete", 403, "Forbidden", "no"),
        NotFound("delete", 404, "NotFound", "gone"),
    ],
)
async def test_a_revision_too_many_that_cannot_be_deleted_keeps_nothing_from_being_done(failure: ClusterError) -> None:
    operator = Operator()
    await operator.settle()
    operator.cluster.failures["delete ControllerRevision"] = failure
    for number in range(1, 13):
        operator.change(batching={"maxRequests": number})
        await operator.look()
    assert "--max-requests=12" in template(operator)["spec"]["containers"][0]["args"]
    assert len(operator.cluster.revisions) == 13
    operator.cluster.failures.clear()
    operator.cluster.engine_pods.clear()
    operator.change(batching={"maxRequests": 13})
    await operator.look()
    assert len(operator.cluster.revisions) == 10


async def test_an_old_revision_that_cannot_be_mended_keeps_nothing_from_being_done() -> None:
    operator = Operator()
    await operator.settle()
    (old,) = operator.cluster.revisions
    operator.change(batching={"maxRequests": 8})
    await operator.settle()
    operator.cluster.revisions[old]["metadata"]["ownerReferences"] = []
    operator.cluster.failures["apply ControllerRevision"] = Refused("apply", 403, "Forbidden", "a webhook says no")
    operator.restart(engine(1))
    operator.change(replicas=4)
    await operator.look()
    assert "apply ControllerRevision" in operator.cluster.writes()
    assert operator.replicas() == 4
    assert operator.cluster.condition("Degraded")["status"] == "False"


async def test_no_revision_is_made_for_a_pool_whose_deletion_was_missed() -> None:
    operator = Operator()
    await operator.settle()
    operator.cluster.fresh_pool = None
    operator.cluster.revisions.clear()
    assert await operator.look(after=301) == LOOK_AGAIN_SOON
    assert operator.cluster.writes() == []
