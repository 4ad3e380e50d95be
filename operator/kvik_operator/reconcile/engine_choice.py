"""Which engine image a new revision runs. Pure.

The operator's image for the pool's device, at the version that the pool names, else at the one that the pool runs, else
as configured. Where a tag names no version there is nothing to choose by, and the image is taken as configured.
"""

from dataclasses import dataclass, replace
from typing import Final

from kvik_operator.crd.engine_version import Version
from kvik_operator.crd.inferencepool import Device, PoolSpec
from kvik_operator.errors import PoolError
from kvik_operator.objects.engine_image import EngineImage, variant_of, version_of

_FIELD: Final = "spec.engine.version"


@dataclass(frozen=True, slots=True)
class RunningEngine:
    """Of the revision in use until now. `device` None: not known."""

    image: str
    device: Device | None

    @property
    def version(self) -> Version | None:
        return version_of(self.image)


def choose_engine(spec: PoolSpec, configured: EngineImage, running: RunningEngine | None) -> EngineImage:
    """`running` None: a new pool. Raises PoolError if the version that the pool names cannot be chosen."""
    named = spec.engine.version
    if named is not None and version_of(configured.reference) is None:
        raise PoolError(
            _FIELD,
            f"the operator's engine image {configured.reference} names no version in its tag, so none can be chosen: "
            "leave the field out, or give the chart's image.engine a tag such as 0.1.0-cpu",
        )
    runs = None if running is None else running.version
    wanted = runs if named is None else _version(named)
    if wanted is None:
        return configured
    if running is not None and wanted == runs and _is_another_variant(spec, configured, running):
        return replace(configured, reference=running.image)
    return configured.at(wanted) or configured


def _is_another_variant(spec: PoolSpec, configured: EngineImage, running: RunningEngine) -> bool:
    """Whether the tag's end has changed: it need not exist at the version that runs, as a tag may end in a commit.

    Another device has another one, and is no such change.
    """
    same_device = running.device in (None, spec.resources.device)
    return same_device and variant_of(configured.reference) not in (None, variant_of(running.image))


def newer_engine(runs: str, configured: str) -> str | None:
    """What is newer than the image that `runs`: a version, or the image as configured where a tag names no version."""
    mine, offered = version_of(runs), version_of(configured)
    if mine is None or offered is None:
        return configured if configured != runs else None
    return str(offered) if offered > mine else None


def _version(text: str) -> Version:
    try:
        return Version.parse(text)
    except ValueError as error:
        raise PoolError(_FIELD, str(error)) from error
