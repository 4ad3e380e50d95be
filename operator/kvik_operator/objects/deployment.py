"""The Deployment that runs the engine pods."""

import math
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from kvik_operator.names import ChildKind, PoolKey
from kvik_operator.objects.metadata import Json, child, selector


def deployment(key: PoolKey, uid: str, template: Mapping[str, Any], replicas: int, startup_timeout: timedelta) -> Json:
    """A new pod is ready before an old one goes (maxUnavailable 0); the operator is the only writer of `replicas`."""
    spec: Json = {
        "replicas": replicas,
        "selector": selector(key.name),
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
        "revisionHistoryLimit": 2,
        "progressDeadlineSeconds": max(2, math.ceil(startup_timeout.total_seconds())),
        "template": template,
    }
    return child(ChildKind.DEPLOYMENT, key, uid, {"spec": spec})
