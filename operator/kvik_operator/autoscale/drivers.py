"""Who carries a decision out, by `scaling.driver`, and what keeps it from being carried out. Pure.

Native: the operator writes the pool's `/scale`. HPA: a HorizontalPodAutoscaler of the pool does, which reads the
decision from the metrics API. KEDA: one that KEDA makes of the pool's ScaledObject, and that reads the decision through
KEDA from the operator's scaler. External: somebody else does, or nobody. Two never do at once: a driver waits until the
object of the one before is gone, and the operator writes nothing beside an autoscaler that is not the pool's (LLMKube
#484); beside one of the pool's own, Kubernetes lets neither scale.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kvik_operator.crd.inferencepool import ScalingDriver
from kvik_operator.names import ChildKind, Reason

Object = Mapping[str, Any]
Trouble = tuple[Reason, str]

AUTOSCALER_LOOKS_WITHIN: Final = 45.0
"""Seconds, three periods of Kubernetes' autoscaler. What it says of itself is about its last look, and that may have
been before there was a decision to read. KEDA tells a little later."""

_OBJECTS: Final[Mapping[ScalingDriver, ChildKind]] = {
    ScalingDriver.HPA: ChildKind.AUTOSCALER,
    ScalingDriver.KEDA: ChildKind.SCALED_OBJECT,
}


@dataclass(frozen=True, slots=True)
class Means:
    """What there is for drivers to work with: the operator's metrics API, its scaler for KEDA, and KEDA's API."""

    metrics_api: bool = False
    keda: bool = False
    keda_served: bool = False


@dataclass(frozen=True, slots=True)
class Scalers:
    """What scales a pool, as far as is known: `own` objects of the pool by kind, and names of others' autoscalers."""

    own: Mapping[ChildKind, Object]
    rivals: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Standing:
    """`writes`: the operator writes the replicas itself now. `trouble`: why the driver does not work; None: it does."""

    writes: bool
    trouble: Trouble | None = None


def standing(driver: ScalingDriver, scalers: Scalers, means: Means, published_for: float) -> Standing:
    """`published_for`: seconds for which there has been a decision to read, without a gap."""
    kind = _OBJECTS.get(driver)
    leaving = next((_leaving(other) for other in scalers.own if other is not kind), None)
    if driver is ScalingDriver.EXTERNAL:
        return Standing(False, leaving)
    if scalers.rivals:
        rival = scalers.rivals[0]
        message = f"the HorizontalPodAutoscaler {rival} scales this pool, too: delete it, or use driver External"
        return Standing(False, (Reason.CONTESTED, message))
    if leaving is not None or kind is None:
        return Standing(leaving is None, leaving)
    lacks = _lacks(driver, means)
    if lacks is not None:
        return Standing(False, lacks)
    return Standing(False, _trouble(kind, scalers.own.get(kind), published_for))


def _leaving(kind: ChildKind) -> Trouble:
    return Reason.SWITCHING_DRIVER, f"waits until the {kind} of the driver before is deleted"


def _lacks(driver: ScalingDriver, means: Means) -> Trouble | None:
    if driver is ScalingDriver.HPA and not means.metrics_api:
        message = "driver HPA needs the operator's metrics API: set metricsAPI.enabled of the chart, or another driver"
        return Reason.METRICS_API_OFF, message
    if driver is ScalingDriver.KEDA and not means.keda:
        message = "driver KEDA needs the operator's scaler: set keda.enabled of the chart, or another driver"
        return Reason.KEDA_OFF, message
    if driver is ScalingDriver.KEDA and not means.keda_served:
        return Reason.KEDA_NOT_SERVED, "driver KEDA needs KEDA, and the cluster has no ScaledObjects (keda.sh/v1alpha1)"
    return None


def _trouble(kind: ChildKind, found: Object | None, published_for: float) -> Trouble | None:
    if found is None or "deletionTimestamp" in found["metadata"]:
        return Reason.SWITCHING_DRIVER, f"the pool's {kind} is not there yet"
    conditions = (found.get("status") or {}).get("conditions") or ()
    if not conditions:
        return Reason.SWITCHING_DRIVER, f"nobody has looked at the pool's {kind} yet"
    by_type = {one.get("type"): one for one in conditions}
    for bad in _BAD[kind]:
        condition = by_type.get(bad.type) or {}
        if condition.get("status") == bad.status:
            message = f"the pool's {kind}: {condition.get('reason')}: {condition.get('message')}"
            waits = bad.for_want_of_a_value and published_for < AUTOSCALER_LOOKS_WITHIN
            return Reason.OBSERVING_LOAD if waits else Reason.AUTOSCALER_FAILED, message
    return None


@dataclass(frozen=True, slots=True)
class _Bad:
    """A condition by which an object says that it does not scale, and whether it may be so for want of a decision."""

    type: str
    status: str
    for_want_of_a_value: bool


_BAD: Final[Mapping[ChildKind, Sequence[_Bad]]] = {
    ChildKind.AUTOSCALER: (_Bad("AbleToScale", "False", False), _Bad("ScalingActive", "False", True)),
    ChildKind.SCALED_OBJECT: (
        _Bad("Paused", "True", False),
        _Bad("Ready", "False", True),
        _Bad("HPAActive", "False", True),
    ),
}
"""What a decision does not put right comes first: it is there whatever the other conditions say."""
