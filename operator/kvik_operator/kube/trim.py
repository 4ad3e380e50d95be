"""What the store keeps of an object: what reconcile, status and autoscaling read, and nothing else.

A pod of 6 KB as JSON takes about 50 KB as Python dictionaries, and a cluster may have thousands.
"""

from collections.abc import Mapping
from typing import Any, Final

from kvik_operator.names import GROUP, KIND

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
        "metadata": _metadata(kind, obj.get("metadata") or {}),
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


def _metadata(kind: str, metadata: Object) -> Object:
    """A pool's labels and annotations are its user's, and may be long: only ours are read."""
    kept = {field: metadata[field] for field in _METADATA if field in metadata}
    for field in ("labels", "annotations"):
        if field in kept:
            kept[field] = {name: value for name, value in kept[field].items() if _is_read(kind, name)}
    return kept


def _is_read(kind: str, name: str) -> bool:
    return name.startswith(f"{GROUP}/") if kind == KIND else name != _LAST_APPLIED


def _pod_status(status: Object) -> Object:
    fields = ("phase", "podIP", "conditions", "initContainerStatuses", "containerStatuses")
    return {field: status[field] for field in fields if field in status}
