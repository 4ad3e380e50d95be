"""Every call of the reconcile flow, failing once in every way: the next looks end where an undisturbed run ends."""

import contextlib
from collections.abc import Callable
from typing import Any

import pytest

from kvik_operator.errors import ClusterError, Conflict, NotFound, Refused, Unavailable
from kvik_operator.names import ChildKind
from kvik_operator.reconcile.reconcile import Reconciler
from kvik_operator.reconcile.types import EngineImages, ReconcileOptions
from tests.support.fake_cluster import FakeCluster
from tests.support.pools import KEY, NOW, TRIGGER, make_pod, make_pool, with_every_child

FAULTS: dict[str, Callable[[str], ClusterError]] = {
    "conflict": lambda what: Conflict(what, 409, "Conflict", "the object has been modified"),
    "not_found": lambda what: NotFound(what, 404, "NotFound", "gone for a moment"),
    "forbidden": lambda what: Refused(what, 403, "Forbidden", 'User "x" cannot patch resource "y"'),
    "invalid": lambda what: Refused(what, 422, "Invalid", "spec.x: Invalid value"),
    "too_many": lambda what: Unavailable(what, 429, "TooManyRequests", "slow down", delay=1),
    "server_error": lambda what: Unavailable(what, 500, "InternalError", "etcd leader changed"),
    "no_answer": lambda what: Unavailable(what, None, "Timeout", "no answer in 10 s"),
}
CALLS = [
    *(f"apply {kind}" for kind in ChildKind),
    *(f"read {kind}" for kind in ChildKind),
    "list ControllerRevisions",
    "apply ControllerRevision",
    "patch_status",
    "annotate_pod",
    "read_pool",
]


async def run(cluster: FakeCluster, broken_call: str, fault: Callable[[str], ClusterError] | None) -> None:
    """A pool is made, comes up with two pods and shrinks to one; the call fails the first time it is made."""
    options = ReconcileOptions(images=EngineImages(gpu="e:1", cpu="e:1-cpu"), metrics_api=True, keda=TRIGGER)
    reconciler = Reconciler(cluster, cluster, cluster, options, lambda: NOW)
    if fault is not None:
        cluster.failures[broken_call] = fault(broken_call)

    async def look() -> None:
        for _ in range(3):
            with contextlib.suppress(ClusterError):  # the queue tries again
                await reconciler.reconcile(KEY)
            if broken_call in cluster.calls:
                cluster.failures.clear()

    await look()
    cluster.engine_pods = [make_pod("a", ready=True), make_pod("b", ready=True)]
    cluster.in_flight = {"uid-a": 5, "uid-b": 0}
    await look()
    assert cluster.stored_pool is not None
    cluster.stored_pool["spec"]["replicas"] = 1
    await look()
    assert not cluster.failures, f"{broken_call} was never called"


def outcome(cluster: FakeCluster) -> dict[str, Any]:
    """What is in the cluster, without how often it was written."""
    children = {
        kind: {**child, "metadata": {**child["metadata"], "generation": 0}} for kind, child in cluster.children.items()
    }
    return {"children": children, "revisions": cluster.revisions, "status": cluster.status, "pods": cluster.engine_pods}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("call", CALLS)
async def test_a_call_that_fails_once_leaves_no_trace(call: str, fault: str) -> None:
    spec = {"replicas": 2, **with_every_child(ChildKind.SCALED_OBJECT if "ScaledObject" in call else None)}
    calm, disturbed = FakeCluster(make_pool(**spec)), FakeCluster(make_pool(**spec))
    await run(calm, call, None)
    await run(disturbed, call, FAULTS[fault])
    if call == "annotate_pod":
        # Best effort: the mark may be missing, everything else may not.
        for cluster in (calm, disturbed):
            for pod in cluster.engine_pods:
                pod["metadata"].pop("annotations", None)
    assert outcome(disturbed) == outcome(calm)
