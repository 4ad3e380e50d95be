"""Whether an object in the cluster already is what a manifest says, so that nothing needs to be written. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from kvik_operator.crd.quantities import parse_quantity
from kvik_operator.names import ANNOTATION_MANIFEST_HASH
from kvik_operator.reconcile.types import Object


def is_current(stored: Object, manifest: Object) -> bool:
    """The same manifest was applied last, and nobody has changed a field of it since."""
    return _applied_hash(stored) == _applied_hash(manifest) and _contains(stored, manifest)


def _applied_hash(obj: Object) -> str | None:
    annotations = obj["metadata"].get("annotations") or {}
    value = annotations.get(ANNOTATION_MANIFEST_HASH)
    return None if value is None else str(value)


def _contains(stored: Any, wanted: Any) -> bool:
    """Every field of `wanted` is in `stored` with that value; what the API server filled in beside it is ignored."""
    if stored is None and (wanted is None or wanted in ("", [], {})):
        return True
    if isinstance(wanted, Mapping):
        return isinstance(stored, Mapping) and all(_contains(stored.get(name), value) for name, value in wanted.items())
    if isinstance(wanted, Sequence) and not isinstance(wanted, str):
        return (
            isinstance(stored, Sequence)
            and not isinstance(stored, str)
            and len(stored) == len(wanted)
            and all(_contains(one, other) for one, other in zip(stored, wanted, strict=True))
        )
    return bool(stored == wanted) or _same_quantity(stored, wanted)


def _same_quantity(stored: Any, wanted: Any) -> bool:
    """The API server rewrites quantities: 1000m becomes 1, 0.5 becomes 500m."""
    try:
        return parse_quantity(stored) == parse_quantity(wanted)
    except ValueError:
        return False
