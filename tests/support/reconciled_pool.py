"""One pool under a reconciler, over an API server in memory: what tests of the whole flow look at."""

from datetime import timedelta
from typing import Any

from kvik_operator.errors import Refused
from kvik_operator.names import ChildKind
from kvik_operator.reconcile.reconcile import Reconciler
from kvik_operator.reconcile.rollout import template_hash
from kvik_operator.reconcile.types import EngineImages, ReconcileOptions, Requeue
from tests.support.fake_cluster import FakeCluster
from tests.support.pools import KEY, NOW, TRIGGER, make_pod, make_pool


class Operator:
    """A reconciler over a FakeCluster, with a clock that stands still until it is moved."""

    def __init__(self, **groups: Any) -> None:
        self.cluster = FakeCluster(make_pool(**groups))
        self.time = NOW
        self.restart()

    def restart(self, options: ReconcileOptions | None = None) -> None:
        images = EngineImages(gpu="kvik/engine:1", cpu="kvik/engine:1-cpu")
        self.reconciler = Reconciler(
            self.cluster,
            self.cluster,
            self.cluster,
            options or ReconcileOptions(images=images, metrics_api=True, keda=TRIGGER),
            lambda: self.time,
        )

    async def look(self, after: float = 0) -> Requeue | None:
        self.time += timedelta(seconds=after)
        return await self.reconciler.reconcile(KEY)

    async def settle(self, pods: int = 1) -> None:
        """The pods come up and the Deployment says so."""
        await self.look()
        deployed = self.cluster.children[ChildKind.DEPLOYMENT]
        own = template_hash(deployed)
        assert own is not None
        self.cluster.engine_pods = [make_pod(f"chat-{n}", ready=True, template_hash=own) for n in range(pods)]
        deployed["status"] = {
            "observedGeneration": deployed["metadata"]["generation"],
            **dict.fromkeys(("replicas", "updatedReplicas", "availableReplicas"), pods),
        }
        await self.look()
        self.cluster.writes()

    @property
    def spec(self) -> dict[str, Any]:
        assert self.cluster.stored_pool is not None
        spec: dict[str, Any] = self.cluster.stored_pool["spec"]
        return spec

    def change(self, **groups: Any) -> None:
        """As a person does it: the API server counts it."""
        self.spec.update(groups)
        assert self.cluster.stored_pool is not None
        self.cluster.stored_pool["metadata"]["generation"] += 1

    def replicas(self) -> int:
        replicas: int = self.cluster.children[ChildKind.DEPLOYMENT]["spec"]["replicas"]
        return replicas


def refused(message: str) -> Refused:
    return Refused("apply Deployment demo/chat", 403, "Forbidden", message)
