"""The ControllerRevisions of one pool, as plans leave them."""

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

from kvik_operator.names import ChildKind
from kvik_operator.objects.engine_image import EngineImage
from kvik_operator.reconcile.observe import observe
from kvik_operator.reconcile.revisions import plan_revisions
from kvik_operator.reconcile.types import Observed, RevisionPlan
from tests.support.fake_cluster import FakeCluster
from tests.support.pools import KEY, NOW, make_pool

Object = dict[str, Any]
OLD = EngineImage("kvik/engine:1", "IfNotPresent")
"""Its tag names no version."""


def seen(*, deployment: Object | None = None, pods: Sequence[Object] = (), **pool: Any) -> Observed:
    cluster = FakeCluster(make_pool(**pool))
    if deployment is not None:
        cluster.children[ChildKind.DEPLOYMENT] = deployment
    cluster.engine_pods = list(pods)
    assert cluster.stored_pool is not None
    return observe(KEY, cluster.stored_pool, cluster, NOW)


class History:
    """Stores what a plan writes, and deletes what it deletes, at once."""

    def __init__(self) -> None:
        self.stored: dict[str, Object] = {}

    def plan(self, observed: Observed, image: EngineImage = OLD) -> RevisionPlan:
        deployed = observed.children.get(ChildKind.DEPLOYMENT)
        return plan_revisions(list(self.stored.values()), deployed, observed, image)

    def go(self, observed: Observed, image: EngineImage = OLD) -> RevisionPlan:
        plan = self.plan(observed, image)
        assert plan.blocked is None
        for obj in plan.delete:
            del self.stored[obj["metadata"]["name"]]
        for manifest in plan.write:
            copy: Object = deepcopy(dict(manifest))
            copy["metadata"]["uid"] = f"uid-{copy['metadata']['name']}"
            self.stored[copy["metadata"]["name"]] = copy
        return plan

    def numbers(self) -> dict[str, int]:
        return {name: obj["revision"] for name, obj in self.stored.items()}
