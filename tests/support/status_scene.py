"""One pool, and what is known about it, as its status is made from them."""

from datetime import timedelta
from typing import Any

from kvik_operator.names import ChildKind, Reason
from kvik_operator.objects.engine_image import EngineImage
from kvik_operator.reconcile.observe import observe
from kvik_operator.reconcile.revisions import plan_revisions
from kvik_operator.reconcile.status import InUse, Reports, status_update
from kvik_operator.reconcile.types import Applied, ApplyProblem, EngineInfo, ScaleStep, ScalingReport, StatusUpdate
from tests.support.fake_cluster import FakeCluster, merged
from tests.support.pools import (
    KEY,
    NOW,
    make_deployment,
    make_pool,
)


class Scene:
    """One pool and what is known about it; `look` writes the status as the operator would."""

    def __init__(self, wanted: int = 1, **groups: Any) -> None:
        self.cluster = FakeCluster(make_pool(**groups))
        self.wanted = wanted
        self.deployment: dict[str, Any] | None = make_deployment(wanted)
        self.pods: list[dict[str, Any]] = []
        self.problems: tuple[ApplyProblem, ...] = ()
        self.infos: dict[str, EngineInfo] = {}
        self.scaling: ScalingReport | None = None
        self.outdated_keys: set[str] = set()
        self.image = self.configured_image = "kvik/engine:1"

    def look(self, seconds: float = 0) -> StatusUpdate:
        pool = self.cluster.stored_pool
        assert pool is not None
        self.cluster.engine_pods = self.pods
        observed = observe(KEY, pool, self.cluster, NOW + timedelta(seconds=seconds))
        children = {} if self.deployment is None else {ChildKind.DEPLOYMENT: self.deployment}
        revision = plan_revisions((), None, observed, EngineImage(self.image, "IfNotPresent")).use
        update = status_update(
            observed,
            self.wanted,
            Applied(children, self.problems),
            Reports(self.infos, self.scaling, self.outdated_keys),
            InUse(revision, self.configured_image),
        )
        pool["status"] = merged(pool.get("status") or {}, update.patch)
        return update

    def revision(self) -> dict[str, str]:
        """As status has it."""
        assert self.cluster.stored_pool is not None
        told: dict[str, str] = self.cluster.stored_pool["status"]["revision"]
        return told

    def condition(self, type_: str) -> tuple[str, str, str]:
        found = self.cluster.condition(type_)
        return found["status"], found["reason"], found["message"]


def info(**values: Any) -> EngineInfo:
    return EngineInfo(version="0.1.0", model_name="chat", **values)


def report(*steps: ScaleStep, **values: Any) -> ScalingReport:
    last = steps[0].time if steps else None
    defaults: dict[str, Any] = {"active": True, "reason": Reason.SCALING_ON_LOAD, "message": "60 %", "desired": 2}
    return ScalingReport(**{**defaults, **values}, last_decision=last, history=steps)
