"""The Deployment that runs the engine pods."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from kvik_operator.names import ANNOTATION_ROLL_IN_PLACE, ANNOTATION_TRY_AGAIN, ChildKind, PoolKey
from kvik_operator.objects.metadata import Json, child, selector


@dataclass(frozen=True, slots=True)
class Pace:
    """How a Deployment may replace pods, as its rolling update has it."""

    max_surge: int
    max_unavailable: int
    switched_for: str | None = None
    """Template hash of the roll that went over to this pace; None: no roll did."""


def deployment(
    key: PoolKey,
    uid: str,
    template: Mapping[str, Any],
    replicas: int,
    pace: Pace,
    progress_deadline: timedelta,
    try_again: str | None = None,
) -> Json:
    """The operator is the only writer of `replicas`; nothing but `template` makes new pods.

    `try_again`: a mark that makes Kubernetes create missing pods at once, whenever it changes.
    """
    rolling = {"maxSurge": pace.max_surge, "maxUnavailable": pace.max_unavailable}
    body: Json = {
        "spec": {
            "replicas": replicas,
            "selector": selector(key.name),
            "strategy": {"type": "RollingUpdate", "rollingUpdate": rolling},
            "revisionHistoryLimit": 2,
            "progressDeadlineSeconds": max(2, math.ceil(progress_deadline.total_seconds())),
            "template": template,
        }
    }
    marks = {ANNOTATION_ROLL_IN_PLACE: pace.switched_for, ANNOTATION_TRY_AGAIN: try_again}
    if annotations := {name: mark for name, mark in marks.items() if mark is not None}:
        body["metadata"] = {"annotations": annotations}
    return child(ChildKind.DEPLOYMENT, key, uid, body)
