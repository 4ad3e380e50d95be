"""The installed CRD lacks a field that the operator knows: what pools were given stays in effect, and they say so."""

from copy import deepcopy
from typing import Any

import pytest

from kvik_operator.errors import ClusterError, Refused, Unavailable
from kvik_operator.names import ChildKind
from kvik_operator.reconcile.dropped_fields import fields_gone, those_not_served
from tests.support.pools import spec_of
from tests.support.reconciled_pool import Operator

LIMITED: dict[str, Any] = {"maxRequests": 16, "maxQueuedRequests": 7}
DROPPED = "batching.maxQueuedRequests"


def arguments(operator: Operator) -> list[str]:
    (engine,) = operator.cluster.children[ChildKind.DEPLOYMENT]["spec"]["template"]["spec"]["containers"]
    args: list[str] = engine["args"]
    return args


def degraded(operator: Operator) -> tuple[str, str]:
    condition = operator.cluster.condition("Degraded")
    return condition["reason"], condition["message"]


async def limited() -> Operator:
    """A pool that serves with a limit, and that had none before."""
    operator = Operator(batching={"maxRequests": 16})
    await operator.settle()
    operator.change(batching=dict(LIMITED))
    await operator.settle()
    assert operator.cluster.condition("Degraded")["status"] == "False"
    return operator


def drop(operator: Operator) -> None:
    """As an API server does it: nobody has written the pool, so its generation stays."""
    operator.cluster.not_served = frozenset({DROPPED})
    del operator.spec["batching"]["maxQueuedRequests"]


@pytest.mark.parametrize("restarted", [False, True])
async def test_a_limit_that_an_older_crd_drops_stays_in_effect_and_is_told(restarted: bool) -> None:
    """cloudflare-gw #748: the CRD was older than its controller, a limit was dropped, and all were let in.

    The spec that is left is that of an earlier revision, which the pool does not go back to either.
    """
    operator = await limited()
    before = deepcopy(operator.cluster.children)
    drop(operator)
    if restarted:
        operator.restart()
    for _ in range(8):
        await operator.look(after=60)
    assert operator.cluster.children == before
    assert degraded(operator)[0] == "FieldsDropped"
    assert f"dropped spec.{DROPPED} from" in degraded(operator)[1]
    assert operator.cluster.condition("Ready")["status"] == "True"
    assert operator.cluster.status["effective"]["batching"]["maxQueuedRequests"] == 7


async def test_what_a_person_changes_meanwhile_is_carried_out_with_it() -> None:
    operator = await limited()
    drop(operator)
    await operator.look()
    operator.change(batching={"maxRequests": 8})
    await operator.settle()
    assert {"--max-requests=8", "--max-queued-requests=7"} <= set(arguments(operator))
    assert degraded(operator)[0] == "FieldsDropped"
    operator.restart()
    operator.change(replicas=3)
    await operator.look()
    assert operator.replicas() == 3
    assert {"--max-requests=8", "--max-queued-requests=7"} <= set(arguments(operator))


async def test_what_scaling_derives_from_it_follows_it() -> None:
    operator = Operator(slo={"ttft": "700ms"}, scaling={"maxReplicas": 3})
    await operator.settle()
    del operator.spec["slo"]["ttft"]
    await operator.look()
    assert degraded(operator)[0] == "FieldsDropped"
    assert operator.cluster.status["effective"]["scaling"]["podFullAt"]["ttft"] == "700ms"


async def test_applied_again_on_the_newer_crd_it_is_the_revision_that_runs() -> None:
    operator = await limited()
    drop(operator)
    await operator.look()
    before = deepcopy(operator.cluster.children)
    operator.cluster.not_served = frozenset()
    await operator.look()
    assert degraded(operator)[0] == "FieldsDropped", "the API server has lost the value"
    operator.change(batching=dict(LIMITED))
    await operator.look()
    assert operator.cluster.children == before
    assert degraded(operator)[0] == "AsExpected"
    assert "read schema" not in operator.cluster.calls


async def test_a_field_that_somebody_leaves_out_is_no_longer_in_effect() -> None:
    operator = await limited()
    operator.change(batching={"maxRequests": 8})
    await operator.look()
    assert "read schema" in operator.cluster.calls
    assert "--max-queued-requests=7" not in arguments(operator)
    assert degraded(operator)[0] == "AsExpected"


@pytest.mark.parametrize("failure", [Unavailable("read", 503, "x", "y"), Refused("read", 403, "Forbidden", "cannot")])
async def test_while_the_schema_cannot_be_read_no_field_is_taken_for_left_out(failure: ClusterError) -> None:
    operator = await limited()
    before = deepcopy(operator.cluster.children)
    operator.cluster.failures["read schema"] = failure
    operator.change(batching={"maxRequests": 8})
    try:
        await operator.look()
    except Unavailable:
        assert isinstance(failure, Unavailable)
    assert operator.cluster.children == before
    operator.cluster.failures.clear()
    await operator.look()
    assert "--max-requests=8" in arguments(operator)


async def test_a_status_field_that_it_lacks_is_not_written_at_every_look() -> None:
    operator = Operator()
    await operator.settle()
    for seconds in (1, 1, 1, 57):
        operator.cluster.status.pop("effective", None)
        await operator.look(after=seconds)
    assert operator.cluster.writes() == ["patch_status"]


def test_a_field_is_gone_if_it_was_set_and_means_its_default_now() -> None:
    before = spec_of(
        batching={"maxRequests": 8, "preemption": {"mode": "Recompute"}},
        apiKeys={"secretRef": {"name": "clients"}},
        template={"labels": {"a": "b", "c": "d"}},
    )
    changed = spec_of(batching={"maxRequests": 9}, slo={"class": "Batch"}, template={"labels": {"a": "b"}})
    assert fields_gone(before, changed) == {"batching.preemption.mode", "apiKeys"}
    assert fields_gone(before, spec_of()) == {
        "batching.maxRequests",
        "batching.preemption.mode",
        "apiKeys",
        "template.labels",
    }
    assert fields_gone(before, before) == frozenset()


def test_a_field_is_not_served_by_itself_or_with_its_group() -> None:
    gone = {"batching.preemption.mode", "batching.maxRequests", "apiKeys"}
    assert those_not_served(gone, {"batching.preemption", "apiKeys", "drain"}) == {
        "batching.preemption.mode",
        "apiKeys",
    }
    assert those_not_served(gone, {"batching.max"}) == frozenset()
