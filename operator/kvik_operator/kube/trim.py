"""What the store keeps of an object: what reconcile, status and autoscaling read, and nothing else.

A pod of 6 KB as JSON takes about 50 KB as Python dictionaries, and a cluster may have thousands.
"""

from collections.abc import Mapping
from typing import Any, Final

Object = Mapping[str, Any]

_METADATA: Final = (
    "name",
    "namespace",
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "labels",
    "annotations",
    "ownerReferences",
)
_LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"


def trim(kind: str, obj: Object) -> Object:
    """`kind` is the object's; children keep their spec whole, since drift is found by comparing it."""
    trimmed: dict[str, Any] = {
        "apiVersion": obj.get("apiVersion"),
        "kind": kind,
        "metadata": _metadata(obj.get("metadata") or {}),
    }
    if kind == "Pod":
        trimmed["status"] = _pod_status(obj.get("status") or {})
        if node := (obj.get("spec") or {}).get("nodeName"):
            trimmed["spec"] = {"nodeName": node}
        return trimmed
    for field in ("spec", "status", "automountServiceAccountToken"):
        if field in obj:
            trimmed[field] = obj[field]
    return trimmed


def _metadata(metadata: Object) -> Object:
    kept = {field: metadata[field] for field in _METADATA if field in metadata}
    annotations = kept.get("annotations")
    if annotations and _LAST_APPLIED in annotations:
        kept["annotations"] = {name: value for name, value in annotations.items() if name != _LAST_APPLIED}
    return kept


def _pod_status(status: Object) -> Object:
    fields = ("phase", "podIP", "conditions", "initContainerStatuses", "containerStatuses")
    return {field: status[field] for field in fields if field in status}
