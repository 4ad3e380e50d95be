"""The revisions of a pool, as its ControllerRevisions tell them (docs/contract.md, section 8). Pure."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kvik_kubectl.errors import PluginError

Object = Mapping[str, Any]

VERSION_PATTERN: Final = r"\d+\.\d+\.\d+(?:-(?:alpha|beta|rc)\.\d+)?"
"""A version as spec.engine.version takes it."""
_TAG: Final = re.compile(rf".+:({VERSION_PATTERN})(?:-[\w.-]+)?", re.ASCII)
NOT_IN_REVISIONS: Final = ("replicas", "scaling", "rollout")
"""Fields of `spec` that no revision keeps; they stay as the pool has them."""
SERVICE_ACCOUNT: Final = "serviceAccountAnnotations"
"""Nor this one of `spec.template`."""


@dataclass(frozen=True, slots=True)
class Revision:
    number: int
    """Orders a pool's revisions; the one in use has the highest. One that is gone back to gets a new one."""
    name: str
    created: str
    """RFC 3339, as the API server writes it."""
    image: str
    spec: Object
    """What the pods were made from."""

    @property
    def engine(self) -> str:
        """Its version, or the image where the tag names none."""
        return version_of(self.image) or self.image


@dataclass(frozen=True, slots=True)
class Change:
    """One field of `spec`, or `engine image` where only the image differs. None: absent."""

    field: str
    before: Any
    after: Any


def revisions_of(pool: Object, stored: Sequence[Object]) -> list[Revision]:
    """Those that this very pool owns and that are as the contract says, newest first."""
    uid = pool["metadata"]["uid"]
    found = [revision for obj in stored if _owner(obj) == uid and (revision := _read(obj)) is not None]
    return sorted(found, key=lambda revision: revision.number, reverse=True)


def find_revision(revisions: Sequence[Revision], wanted: str) -> Revision:
    """By number or name. Raises PluginError naming what there is."""
    for revision in revisions:
        if wanted in (str(revision.number), revision.name):
            return revision
    there = ", ".join(str(revision.number) for revision in revisions) or "none"
    raise PluginError(f"there is no revision {wanted}; there are: {there}")


def version_of(image: str) -> str | None:
    """The engine that the image's tag names; None: it names none."""
    match = _TAG.fullmatch(image)
    return None if match is None else match[1]


def changes_between(older: Revision, newer: Revision) -> list[Change]:
    changes = spec_changes(older.spec, newer.spec)
    told = any(change.field == "engine.version" for change in changes)
    if older.image != newer.image and not told:
        changes.append(Change("engine image", older.image, newer.image))
    return changes


def spec_changes(before: Object, after: Object) -> list[Change]:
    """Field by field, sorted; lists count as one field."""
    old, new = dict(_leaves(before)), dict(_leaves(after))
    fields = sorted({*old, *new})
    return [Change(field, old.get(field), new.get(field)) for field in fields if old.get(field) != new.get(field)]


def inputs_of(spec: Object) -> Object:
    """The part of a pool's spec that a revision keeps."""
    inputs = {name: value for name, value in spec.items() if name not in NOT_IN_REVISIONS}
    template = {name: value for name, value in (inputs.get("template") or {}).items() if name != SERVICE_ACCOUNT}
    return {**inputs, "template": template} if template else {n: v for n, v in inputs.items() if n != "template"}


def restored(spec: Object, revision: Revision) -> Object:
    """The pool's spec as the revision has it; what no revision keeps stays as it is."""
    kept = {name: spec[name] for name in NOT_IN_REVISIONS if name in spec}
    annotations = (spec.get("template") or {}).get(SERVICE_ACCOUNT)
    target = {**revision.spec, **kept}
    if annotations is not None:
        target["template"] = {**(target.get("template") or {}), SERVICE_ACCOUNT: annotations}
    return target


def merge_patch(before: Object, after: Object) -> Object:
    """The RFC 7386 patch that turns `before` into `after`."""
    patch: dict[str, Any] = {name: None for name in before if name not in after}
    for name, value in after.items():
        old = before.get(name)
        if isinstance(value, Mapping) and isinstance(old, Mapping):
            if inner := merge_patch(old, value):
                patch[name] = inner
        elif value != old:
            patch[name] = value
    return patch


def _owner(obj: Object) -> str | None:
    owners = obj["metadata"].get("ownerReferences") or ()
    return next((owner.get("uid") for owner in owners if owner.get("controller")), None)


def _read(obj: Object) -> Revision | None:
    data, number = obj.get("data"), obj.get("revision")
    if not isinstance(data, Mapping) or not isinstance(number, int):
        return None
    spec, image = data.get("spec"), data.get("image")
    if not isinstance(spec, Mapping) or not isinstance(image, str):
        return None
    metadata = obj["metadata"]
    return Revision(number, metadata["name"], metadata.get("creationTimestamp") or "", image, spec)


def _leaves(value: Object, under: str = "") -> Iterable[tuple[str, Any]]:
    """An empty group means the same as an absent one."""
    for name, item in value.items():
        if isinstance(item, Mapping):
            yield from _leaves(item, f"{under}{name}.")
        else:
            yield f"{under}{name}", item
