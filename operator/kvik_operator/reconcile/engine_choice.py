"""Which engine image a new revision runs. Pure.

The operator's image for the pool's device, at the version that the pool names, else at the one that the pool runs, else
as configured. Where a tag names no version there is nothing to choose by, and the image is taken as configured.
"""

from kvik_operator.crd.engine_version import Version
from kvik_operator.crd.inferencepool import PoolSpec
from kvik_operator.errors import PoolError
from kvik_operator.objects.engine_image import EngineImage, version_of

_FIELD = "spec.engine.version"


def choose_engine(spec: PoolSpec, configured: EngineImage, running: str | None) -> EngineImage:
    """`running` is the image of the revision in use; None for a new pool. Raises PoolError if none can be chosen."""
    named = spec.engine.version
    version = _version(named) if named is not None else None if running is None else version_of(running)
    if version is None:
        return configured
    chosen = configured.at(version)
    if chosen is None and named is not None:
        raise PoolError(
            _FIELD,
            f"the operator's engine image {configured.reference} names no version in its tag, so none can be chosen: "
            "leave the field out, or give the chart's image.engine a tag such as 0.1.0-cpu",
        )
    return chosen or configured


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
