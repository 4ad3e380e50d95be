"""The number of replicas that autoscalers are told: what was last decided, while it holds. Pure."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from kvik_operator.reconcile.types import ScalingReport

DECISION_HOLDS: Final = timedelta(seconds=30)
"""A decision is made every five seconds."""


@dataclass(frozen=True, slots=True)
class Published:
    replicas: int
    age: float
    """In seconds."""


def published(report: ScalingReport | None, utcnow: datetime) -> Published | None:
    """None: nothing was decided, or it is too long ago. Never 0 for want of data."""
    if report is None or report.desired is None or report.last_decision is None:
        return None
    age = utcnow - report.last_decision
    return Published(report.desired, age / timedelta(seconds=1)) if age <= DECISION_HOLDS else None
