"""The image of engine pods, and which engine its tag says is inside.

A tag follows versions if it is `VERSION` or `VERSION-VARIANT`: `0.1.0`, `0.1.0-cpu`, `0.2.0-rc.1-demo`. All else (a
digest, `latest`, a commit) says nothing, and nothing is guessed.
"""

import re
from dataclasses import dataclass, replace
from typing import Final, Self

from kvik_operator.crd.engine_version import VERSION_PATTERN, Version

_REFERENCE: Final = re.compile(
    rf"(?P<repository>.+):(?P<version>{VERSION_PATTERN})(?P<variant>(?:-[\w.-]+)?)", re.ASCII
)


@dataclass(frozen=True, slots=True)
class EngineImage:
    """`pull_policy` is Kubernetes' imagePullPolicy; `hf_endpoint` the hub mirror to fetch models from, if any."""

    reference: str
    pull_policy: str
    hf_endpoint: str | None = None

    def at(self, version: Version) -> Self | None:
        """The same repository and variant at another version; None: this image's tag follows no versions."""
        match = _REFERENCE.fullmatch(self.reference)
        if match is None:
            return None
        return replace(self, reference=f"{match['repository']}:{version}{match['variant']}")


def variant_of(reference: str) -> str | None:
    """What follows the version in the tag, such as `-cpu`, or nothing; None: the tag names no version."""
    match = _REFERENCE.fullmatch(reference)
    return None if match is None else match["variant"]


def version_of(reference: str) -> Version | None:
    """The engine that the image's tag names; None: it names none."""
    match = _REFERENCE.fullmatch(reference)
    return None if match is None else Version.parse(match["version"])
