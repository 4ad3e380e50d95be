"""Pods that the API server refuses are tried again soon, for as long as it does."""

from datetime import timedelta

import pytest

from kvik_operator.names import ANNOTATION_TRY_AGAIN, ChildKind
from tests.support.pools import pod_condition
from tests.support.reconciled_pool import Operator

REFUSED = pod_condition("ReplicaFailure", True, 0, message="exceeded quota: q")


def mark(operator: Operator) -> str | None:
    annotations = operator.cluster.children[ChildKind.DEPLOYMENT]["metadata"]["annotations"]
    value: str | None = annotations.get(ANNOTATION_TRY_AGAIN)
    return value


async def refused() -> Operator:
    operator = Operator()
    await operator.settle()
    operator.cluster.children[ChildKind.DEPLOYMENT]["status"]["conditions"] = [REFUSED]
    await operator.look()
    assert operator.cluster.condition("Degraded")["reason"] == "QuotaExceeded"
    operator.cluster.writes()
    return operator


async def test_a_refused_pod_is_tried_again_every_ten_seconds() -> None:
    operator = await refused()
    marks = [mark(operator)]
    for _ in range(3):
        await operator.look(after=10)
        marks.append(mark(operator))
    assert None not in marks
    assert len(set(marks)) == 4


async def test_looks_in_between_write_nothing() -> None:
    operator = await refused()
    operator.time += timedelta(seconds=10 - operator.time.timestamp() % 10)
    await operator.look()
    operator.cluster.writes()
    for _ in range(9):
        await operator.look(after=1)
    assert operator.cluster.writes() == []


@pytest.mark.parametrize("conditions", [[], [{**REFUSED, "status": "False"}]])
async def test_the_mark_goes_with_the_refusal(conditions: list[dict[str, str]]) -> None:
    operator = await refused()
    operator.cluster.children[ChildKind.DEPLOYMENT]["status"]["conditions"] = conditions
    await operator.look()
    assert mark(operator) is None
    assert operator.cluster.condition("Degraded")["status"] == "False"
