"""The annotation kvik.dev/paused on a real API server: a person has the pool's objects to themselves."""

import pytest

from tests.support.kubectl import condition
from tests.support.operator_rig import Rig, eventually

pytestmark = pytest.mark.timeout(600)
POOL = "inferencepools.kvik.dev/chat"


def rollout_reason(rig: Rig) -> str:
    return (condition(rig.pool(), "RolloutComplete") or {}).get("reason", "")


def deployed_replicas(rig: Rig) -> int | None:
    deployment = rig.deployment()
    return None if deployment is None else deployment["spec"]["replicas"]


def test_a_paused_pools_objects_are_left_alone_until_the_pause_ends(operated: Rig) -> None:
    rig, proxy = operated, operated.proxy()
    rig.operator(proxy=proxy)
    rig.create(replicas=1)
    rig.wait_ready()
    eventually("the first roll to end", lambda: rollout_reason(rig) == "RolloutComplete", 30, rig.explain)

    rig.kubectl("annotate", POOL, "kvik.dev/paused=true")
    eventually("the pause to be told", lambda: rollout_reason(rig) == "Paused", 30, rig.explain)
    writes = len(proxy.writes())
    rig.kubectl("scale", "deployment/chat", "--replicas=2")
    rig.kubectl("delete", "service/chat")
    rig.patch({"replicas": 3, "batching": {"maxRequests": 4}})

    def told() -> bool:
        pool = rig.pool() or {}
        status = pool["status"]
        return bool(status["observedGeneration"] == pool["metadata"]["generation"] and status["ready"] == "2/3")

    eventually("the hand-made pod to be seen", told, 60, rig.explain)
    written = {one.path for one in proxy.writes()[writes:] if "/events" not in one.path and "/leases" not in one.path}
    assert {path.rpartition("/")[2] for path in written} == {"status"}
    assert deployed_replicas(rig) == 2

    rig.kubectl("annotate", POOL, "kvik.dev/paused-")
    eventually("three pods of the new revision", lambda: _three_new(rig), 90, rig.explain)
    assert len(rig.children()) == 5


def _three_new(rig: Rig) -> bool:
    status = (rig.pool() or {})["status"]
    return deployed_replicas(rig) == 3 and status["ready"] == "3/3" and rollout_reason(rig) == "RolloutComplete"
