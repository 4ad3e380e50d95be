"""What is known about a pool when its conditions are decided. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from kvik_operator.crd.engine_version import Version
from kvik_operator.names import ChildKind
from kvik_operator.objects.engine_flags import TooOld
from kvik_operator.reconcile.pod_state import PodState
from kvik_operator.reconcile.rollout import template_hash
from kvik_operator.reconcile.types import Applied, EngineInfo, Object, Observed, ScalingReport


@dataclass(frozen=True, slots=True)
class EngineTooOld:
    """Fields that the pool sets and its engine does not have, so that they are not in effect."""

    engine: Version
    fields: tuple[TooOld, ...]

    def __str__(self) -> str:
        needed = max(one.since for one in self.fields)
        wants = ", ".join(f"{one.field} needs engine {one.since}" for one in self.fields)
        return (
            f"{wants}; the pool runs {self.engine}, without: set spec.engine.version to {needed} or later, "
            "or leave the field out"
        )


@dataclass(frozen=True, slots=True)
class Findings:
    """What the conditions are decided from."""

    wanted: int
    """Replicas asked for, within the bounds of `scaling`."""
    pods: Sequence[PodState]
    """Pods that count, of all revisions."""
    infos: Sequence[EngineInfo]
    """What ready pods of the current template said; those of an older one may well serve another model."""
    applied: Applied
    scaling: ScalingReport | None
    observed: Observed
    reached: bool
    """Whether the revision in use had every pod ready at some time before."""
    too_old: EngineTooOld | None = None
    outdated_keys: Sequence[str] = ()
    """Names of the pods that cannot use the Secret's API keys and go on with earlier ones."""

    @property
    def ready(self) -> int:
        return sum(pod.ready for pod in self.pods)

    @property
    def stopped(self) -> bool:
        return self.wanted == 0

    @property
    def deployment(self) -> Object | None:
        return self.applied.children.get(ChildKind.DEPLOYMENT)

    @property
    def current(self) -> list[PodState]:
        """Pods of the template that the Deployment makes now; all of them if it has none of ours."""
        newest = template_hash(self.deployment)
        return [pod for pod in self.pods if newest in (None, pod.template_hash)]

    @property
    def older(self) -> list[PodState]:
        newest = template_hash(self.deployment)
        return [pod for pod in self.pods if newest not in (None, pod.template_hash)]


def deployment_condition(deployed: Object | None, type_: str) -> Object | None:
    conditions = ((deployed or {}).get("status") or {}).get("conditions") or ()
    return next((condition for condition in conditions if condition.get("type") == type_), None)
