"""The answers of the metrics APIs as JSON documents. Pure.

Versions, paths and fields: k8s.io/metrics, packages custom_metrics and external_metrics.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from kvik_operator.metrics_api.figures import METRICS, Metric
from kvik_operator.metrics_api.quantity import format_quantity
from kvik_operator.names import API_VERSION, CRD_NAME, KIND

Json = dict[str, Any]

CUSTOM: Final = "custom.metrics.k8s.io"
EXTERNAL: Final = "external.metrics.k8s.io"
VERSIONS: Final[Mapping[str, Sequence[str]]] = {CUSTOM: ("v1beta2", "v1beta1"), EXTERNAL: ("v1beta1",)}
"""By group, the preferred one first."""
PODS: Final = "pods"
POOLS: Final = CRD_NAME
"""What metrics are about, as a path names it: resource and group."""
LABEL_POOL: Final = "pool"
"""The one label that the metrics themselves have: the pool's name."""

_KINDS: Final = {PODS: ("v1", "Pod"), POOLS: (API_VERSION, KIND)}


@dataclass(frozen=True, slots=True)
class Sample:
    """One value: of which object, and when it was measured."""

    resource: str
    namespace: str
    name: str
    metric: Metric
    value: float
    at: datetime


def resources(group_name: str, version: str) -> Json:
    """The discovery of one version: every metric, as what it is about and its name.

    The only discovery that is served: where `/apis` is not found, API servers ask version by version.
    """
    kind = "MetricValueList" if group_name == CUSTOM else "ExternalMetricValueList"
    if group_name == CUSTOM:
        names = [f"{POOLS}/{name}" for name in METRICS]
        names += [f"{PODS}/{name}" for name, metric in METRICS.items() if metric.of_pod is not None]
    else:
        names = list(METRICS)
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": f"{group_name}/{version}",
        "resources": [
            {"name": name, "singularName": "", "namespaced": True, "kind": kind, "verbs": ["get"]} for name in names
        ],
    }


def custom_values(version: str, samples: Iterable[Sample]) -> Json:
    items = [_custom_value(version, sample) for sample in samples]
    return {"kind": "MetricValueList", "apiVersion": f"{CUSTOM}/{version}", "metadata": {}, "items": items}


def external_values(version: str, samples: Iterable[Sample]) -> Json:
    items = [
        {
            "metricName": sample.metric.name,
            "metricLabels": {LABEL_POOL: sample.name},
            "timestamp": _rfc3339(sample.at),
            **_window(sample.metric),
            "value": format_quantity(sample.value),
        }
        for sample in samples
    ]
    return {"kind": "ExternalMetricValueList", "apiVersion": f"{EXTERNAL}/{version}", "metadata": {}, "items": items}


def failure(code: int, reason: str, message: str) -> Json:
    """A `metav1.Status`, as kubectl and the HorizontalPodAutoscaler show it."""
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": reason,
        "code": code,
    }


def _custom_value(version: str, sample: Sample) -> Json:
    api_version, kind = _KINDS[sample.resource]
    name = sample.metric.name
    metric: Json = {"metricName": name} if version == "v1beta1" else {"metric": {"name": name, "selector": None}}
    described = {"kind": kind, "namespace": sample.namespace, "name": sample.name, "apiVersion": api_version}
    return {
        "describedObject": described,
        **metric,
        "timestamp": _rfc3339(sample.at),
        **_window(sample.metric),
        "value": format_quantity(sample.value),
    }


def _window(metric: Metric) -> Json:
    return {} if metric.window is None else {"windowSeconds": metric.window}


def _rfc3339(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
