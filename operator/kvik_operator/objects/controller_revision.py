"""The ControllerRevision of one revision of a pool: what its pods were made from, and the pod template that came of it.

The API server lets nobody change `data`, and the name holds its digest, so other content does not pass for ours.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from kvik_operator.crd.effective import Effective
from kvik_operator.crd.inferencepool import PoolSpec, Rollout
from kvik_operator.names import CONTAINER_ENGINE, REVISION_API_VERSION, REVISION_KIND, PoolKey
from kvik_operator.objects.metadata import Json, digest, owned

_TYPE: Final = {"apiVersion": REVISION_API_VERSION, "kind": REVISION_KIND}
_NO_INPUT: Final = ("replicas", "scaling", "rollout")
"""Fields of the spec that no pod depends on, with `template.serviceAccountAnnotations`."""


def controller_revision(key: PoolKey, uid: str, data: Mapping[str, Any], number: int) -> Json:
    """`number` orders the pool's revisions: the one in use has the highest."""
    return owned(_TYPE, revision_name(key, data), key, uid, {"data": data, "revision": number})


def revision_data(
    raw_spec: Mapping[str, Any], spec: PoolSpec, effective: Effective, template: Mapping[str, Any]
) -> Json:
    """`raw_spec` is `spec` as the API server has it; the template names the engine image in its engine container."""
    values = msgspec.to_builtins(effective)
    del values["scaling"]
    return {
        "spec": _inputs(raw_spec, spec),
        "effective": values,
        "image": engine_image_of(template),
        "template": _without_nulls(template),
    }


def revision_name(key: PoolKey, data: Mapping[str, Any]) -> str:
    return f"{key.name}-{digest(_without_nulls(data))}"


def read_data(key: PoolKey, stored: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The data of a stored ControllerRevision; None if it is not as it was made."""
    data = stored.get("data")
    try:
        if not isinstance(data, Mapping) or stored["metadata"]["name"] != revision_name(key, data):
            return None
    except RecursionError:  # nested as nothing of ours is
        return None
    shaped = all(isinstance(data.get(name), Mapping) for name in ("spec", "effective", "template"))
    return data if shaped and engine_image_of(data["template"]) == data.get("image") is not None else None


def pod_inputs(spec: PoolSpec) -> PoolSpec:
    """Without what no pod depends on."""
    template = msgspec.structs.replace(spec.template, service_account_annotations={})
    return msgspec.structs.replace(spec, replicas=1, scaling=None, rollout=Rollout(), template=template)


def pod_inputs_of(data: Mapping[str, Any]) -> PoolSpec | None:
    """What of a spec the revision was made from; None if this version cannot read it.

    A field that is absent in it means its default, so that a field that is new in the API makes no new revision.
    """
    try:
        return pod_inputs(msgspec.convert(data["spec"], PoolSpec))
    except msgspec.ValidationError:
        return None


def effective_of(data: Mapping[str, Any], now: Effective) -> Effective:
    """The values as they were then; what was not known then is as `now`."""
    stored = {**msgspec.to_builtins(now), "scaling": None}
    for name, value in data["effective"].items():
        group = stored.get(name)
        stored[name] = {**group, **value} if isinstance(group, dict) and isinstance(value, Mapping) else value
    try:
        return msgspec.convert(stored, Effective)
    except msgspec.ValidationError:
        return now


def engine_image_of(template: Any) -> str | None:
    """None: this is no pod template with an engine in it."""
    try:
        (engine,) = (item for item in template["spec"]["containers"] if item["name"] == CONTAINER_ENGINE)
        image = engine["image"]
    except (TypeError, KeyError, ValueError):
        return None
    return image if isinstance(image, str) else None


def _inputs(raw_spec: Mapping[str, Any], spec: PoolSpec) -> Json:
    """As the API server has it, but only what this version reads and pods depend on.

    What it does not read did not reach the pods: were it kept, an operator that does read it would take the revision
    for one that was made with it.
    """
    inputs: Json = _read_of(raw_spec, msgspec.to_builtins(spec))
    template = inputs.get("template")
    if template is not None:
        inputs["template"] = {name: item for name, item in template.items() if name != "serviceAccountAnnotations"}
    return {name: value for name, value in inputs.items() if name not in _NO_INPUT}


def _read_of(raw: Any, read: Any) -> Any:
    """`read` is what `raw` was read as: it has every field that was known, and what is free-form is in it whole."""
    if isinstance(raw, Mapping) and isinstance(read, Mapping):
        return {name: _read_of(value, read[name]) for name, value in raw.items() if name in read}
    if isinstance(raw, list) and isinstance(read, list | tuple):
        return [_read_of(item, as_read) for item, as_read in zip(raw, read, strict=True)]
    return raw


def _without_nulls(value: Any) -> Any:
    """An API server need not keep them."""
    if isinstance(value, Mapping):
        return {name: _without_nulls(item) for name, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list | tuple) else value
