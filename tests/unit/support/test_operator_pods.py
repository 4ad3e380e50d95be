"""When the operators of an install count as there and alone."""

from typing import Any, cast

import pytest

from tests.support.kubectl import Kubectl
from tests.support.operator_pods import alone_and_ready, leader


def deployment(*, replicas: int = 2, generation: int = 3, **status: int) -> dict[str, Any]:
    whole = {"observedGeneration": 3, "updatedReplicas": 2}
    return {"metadata": {"generation": generation}, "spec": {"replicas": replicas}, "status": whole | status}


def pod(name: str, *, ready: str = "True", **metadata: str) -> dict[str, Any]:
    return {"metadata": {"name": name} | metadata, "status": {"conditions": [{"type": "Ready", "status": ready}]}}


ENDING = pod("old", deletionTimestamp="2026-01-01T00:00:00Z")


def test_the_pods_that_were_asked_for_are_alone_once_all_of_them_are_ready() -> None:
    assert alone_and_ready([deployment()], [pod("a"), pod("b")]) == ["a", "b"]


@pytest.mark.parametrize(
    ("deployments", "pods"),
    [
        pytest.param([deployment()], [pod("a"), pod("b"), ENDING], id="one of before still ends"),
        pytest.param([deployment()], [pod("a"), ENDING], id="one of before in place of one that is to come"),
        pytest.param([deployment()], [pod("a"), pod("b", ready="False")], id="one is not ready"),
        pytest.param([deployment()], [pod("a")], id="one is missing"),
        pytest.param([deployment(updatedReplicas=1)], [pod("a"), pod("b")], id="one is of the template before"),
        pytest.param([deployment(generation=4)], [pod("a"), pod("b")], id="the template has just changed"),
        pytest.param([], [], id="nothing is installed"),
    ],
)
def test_operators_are_not_yet_alone(deployments: list[dict[str, Any]], pods: list[dict[str, Any]]) -> None:
    assert alone_and_ready(deployments, pods) is None


class Cluster:
    def __init__(self, holder: str | None, *pods: dict[str, Any]) -> None:
        self._found = {"leases": [{"spec": {"holderIdentity": holder}}], "pods": list(pods)}

    def list(self, kind: str, selector: str) -> list[dict[str, Any]]:
        return self._found[kind]


@pytest.mark.parametrize(
    ("holder", "want"),
    [("a_1f2e", "a"), ("old_1f2e", None), ("gone_1f2e", None), ("", None), (None, None)],
)
def test_a_leader_is_a_pod_that_stays(holder: str | None, want: str | None) -> None:
    assert leader(cast(Kubectl, Cluster(holder, pod("a"), ENDING))) == want
