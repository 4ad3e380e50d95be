"""Versions of the engine: how they are written and which is newer. Pure."""

import re
from dataclasses import dataclass
from typing import Final, Self

VERSION_PATTERN: Final = r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(?:-(alpha|beta|rc)\.(0|[1-9]\d*))?"
"""Semantic Versioning with three kinds of pre-release only: in an image's tag, a version ends where `-cpu` begins."""
_RELEASE: Final = "release"  # sorts after alpha, beta and rc


@dataclass(frozen=True, slots=True, order=True)
class Version:
    major: int
    minor: int
    patch: int
    stage: str = _RELEASE
    number: int = 0

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises ValueError for anything but `0.1.0` or `0.2.0-rc.1`."""
        match = re.fullmatch(VERSION_PATTERN, text, re.ASCII)
        if match is None:
            raise ValueError(f"{text!r} is no version like 0.1.0 or 0.2.0-rc.1")
        major, minor, patch, stage, number = match.groups()
        return cls(int(major), int(minor), int(patch), stage or _RELEASE, int(number or 0))

    def __str__(self) -> str:
        stage = "" if self.stage == _RELEASE else f"-{self.stage}.{self.number}"
        return f"{self.major}.{self.minor}.{self.patch}{stage}"
