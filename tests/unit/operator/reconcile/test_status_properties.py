"""Whatever state the pods are in, the status keeps its promises."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from kvik_operator.names import ChildKind, ConditionType, Reason
from kvik_operator.reconcile.observe import observe
from kvik_operator.reconcile.status import Reports, status_update
from kvik_operator.reconcile.types import Applied, ApplyProblem
from tests.support.fake_cluster import FakeCluster, merged
from tests.support.pools import KEY, NOW, at, ended, make_deployment, make_pod, make_pool, restarting, terminating

CONTAINERS = st.sampled_from(
    [
        {},
        {"started": True},
        {"state": {"waiting": {"reason": "ImagePullBackOff"}}},
        {"state": {"waiting": {"reason": "ContainerCreating"}}},
        {"state": {"waiting": {"reason": "CreateContainerError", "message": "x"}}},
        {"state": {}},
        restarting(ended(1, "boom")),
        restarting(ended(137, reason="OOMKilled")),
        restarting(ended(78, "ModelNotFound: no such file")),
        restarting(ended(0)),
        restarting({"exitCode": 2}),
    ]
)


@st.composite
def pods(draw: st.DrawFn) -> list[dict[str, Any]]:
    made = []
    for number in range(draw(st.integers(0, 4))):
        pod = make_pod(
            f"chat-{number}",
            ready=draw(st.booleans()),
            engine=draw(CONTAINERS),
            model=draw(st.none() | CONTAINERS),
            scheduled=draw(st.booleans()),
            sandbox=draw(st.booleans()),
            template_hash=draw(st.sampled_from(["abcdef0123456789", "older"])),
        )
        if draw(st.booleans()):
            pod["status"].pop(draw(st.sampled_from(["conditions", "containerStatuses", "phase"])), None)
        made.append(terminating(pod) if draw(st.booleans()) else pod)
    return made


@given(
    engine_pods=pods(),
    wanted=st.integers(0, 4),
    deployed=st.none() | st.builds(make_deployment, st.integers(0, 4)),
    refused=st.booleans(),
)
def test_a_status_keeps_its_promises(
    engine_pods: list[dict[str, Any]], wanted: int, deployed: dict[str, Any] | None, refused: bool
) -> None:
    cluster = FakeCluster(make_pool(replicas=wanted))
    cluster.engine_pods = engine_pods
    assert cluster.stored_pool is not None
    children = {} if deployed is None else {ChildKind.DEPLOYMENT: deployed}
    problems = (ApplyProblem(Reason.APPLY_REFUSED, "no"),) if refused else ()
    applied = Applied(children, problems)
    update = status_update(observe(KEY, cluster.stored_pool, cluster, NOW), wanted, applied, Reports({}, None), None)
    status = merged({}, update.patch)
    conditions = {condition["type"]: condition for condition in status["conditions"]}
    # All five, each with words, whatever happened.
    assert list(conditions) == list(ConditionType)
    assert all(condition["reason"] in set(Reason) and condition["message"] for condition in conditions.values())
    # Ready exactly with a ready pod, and the counts say the same.
    assert (conditions["Ready"]["status"] == "True") == (status["readyReplicas"] > 0)
    assert status["readyReplicas"] <= status["replicas"] <= len(engine_pods)
    assert status["ready"] == f"{status['readyReplicas']}/{wanted}"
    # A refusal is never hidden.
    if refused:
        assert conditions["Degraded"]["status"] == "True"
        assert conditions["RolloutComplete"]["status"] == "False"
    # The same look again changes nothing.
    cluster.stored_pool["status"] = status
    again = status_update(observe(KEY, cluster.stored_pool, cluster, NOW), wanted, applied, Reports({}, None), None)
    assert (again.patch, again.events) == ({}, ())
    assert conditions["Ready"]["lastTransitionTime"] == at(0)
