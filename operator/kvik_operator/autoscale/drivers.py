"""Who carries a decision out, by `scaling.driver`, and what keeps it from being carried out. Pure.

Native: the operator writes the pool's `/scale`. HPA: a HorizontalPodAutoscaler of the pool does, which reads the
decision from the metrics API. External: somebody else does, or nobody. Two never do at once: Native waits until the
pool's own autoscaler is gone, and nobody goes on beside one that is not the pool's (LLMKube #484).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from kvik_operator.crd.inferencepool import ScalingDriver
from kvik_operator.names import Reason

Object = Mapping[str, Any]

AUTOSCALER_LOOKS_WITHIN: Final = 45.0
"""Seconds, three periods of Kubernetes' autoscaler. What it says of itself is about its last look, and that may have
been before there was a decision to read."""


@dataclass(frozen=True, slots=True)
class Standing:
    """`writes`: the operator writes the replicas itself now. `trouble`: why the driver does not work; None: it does."""

    writes: bool
    trouble: tuple[Reason, str] | None = None


def standing(
    driver: ScalingDriver, autoscaler: Object | None, rival: str | None, *, metrics_api: bool, published_for: float
) -> Standing:
    """`autoscaler`: the pool's own; `rival`: the name of another one on the pool, as far as is known.

    `published_for`: seconds for which there has been a decision to read, without a gap.
    """
    if driver is ScalingDriver.EXTERNAL:
        return Standing(False, None if autoscaler is None else _leaving(autoscaler))
    if rival is not None:
        message = f"the HorizontalPodAutoscaler {rival} scales this pool, too: delete it, or use driver External"
        return Standing(False, (Reason.CONTESTED, message))
    if driver is ScalingDriver.NATIVE:
        return Standing(True) if autoscaler is None else Standing(False, _leaving(autoscaler))
    if not metrics_api:
        message = "driver HPA needs the operator's metrics API: set metricsAPI.enabled of the chart, or another driver"
        return Standing(False, (Reason.METRICS_API_OFF, message))
    return Standing(False, _autoscaler_trouble(autoscaler, published_for))


def _leaving(autoscaler: Object) -> tuple[Reason, str]:
    name = autoscaler["metadata"]["name"]
    return Reason.SWITCHING_DRIVER, f"waits until the HorizontalPodAutoscaler {name} of driver HPA is deleted"


def _autoscaler_trouble(autoscaler: Object | None, published_for: float) -> tuple[Reason, str] | None:
    if autoscaler is None or "deletionTimestamp" in autoscaler["metadata"]:
        return Reason.SWITCHING_DRIVER, "the HorizontalPodAutoscaler of driver HPA is not there yet"
    conditions = (autoscaler.get("status") or {}).get("conditions") or ()
    if not conditions:
        return Reason.SWITCHING_DRIVER, "Kubernetes has not looked at the pool's HorizontalPodAutoscaler yet"
    for type_ in ("AbleToScale", "ScalingActive"):
        found: Object = next((one for one in conditions if one.get("type") == type_), {})
        if found.get("status") == "False":
            message = f"the pool's HorizontalPodAutoscaler: {found.get('reason')}: {found.get('message')}"
            waits = published_for < AUTOSCALER_LOOKS_WITHIN
            return Reason.OBSERVING_LOAD if waits else Reason.AUTOSCALER_FAILED, message
    return None
