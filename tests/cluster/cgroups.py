"""Control groups of the kubelets, in every hierarchy of cgroup v1 or in the one of v2."""

import os
from collections.abc import Iterator
from pathlib import Path

MOUNTED = Path("/sys/fs/cgroup")
PODS = "kubepods"


def make(group: str, mounted: Path = MOUNTED) -> None:
    """A kubelet makes its pods' groups below one that is there."""
    for hierarchy in _hierarchies(mounted):
        (hierarchy / group.lstrip("/")).mkdir(exist_ok=True)


def remove(group: str, mounted: Path = MOUNTED) -> None:
    """The kubelet's empty groups below `group`, and `group` itself unless it is the root."""
    for hierarchy in _hierarchies(mounted):
        own = group.lstrip("/") or PODS
        for folder, _, _ in os.walk(hierarchy / own, topdown=False):
            try:
                Path(folder).rmdir()
            except OSError:
                break  # still in use: not ours to force


def _hierarchies(mounted: Path) -> Iterator[Path]:
    if (mounted / "cgroup.controllers").exists():
        yield mounted
    else:
        yield from (path for path in mounted.iterdir() if path.is_dir() and not path.is_symlink())
