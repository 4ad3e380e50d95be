"""A build context that depends on contents alone.

A builder's layer cache may look at times and modes, and a fresh clone has new ones: so a context is a copy in which
every file has the same time and one of two modes. Its hash names the inputs of an image on any machine.
"""

import hashlib
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

EPOCH = 1_000_000_000
IGNORED = ("__pycache__", ".*", "*.pyc", "*.egg-info", "build", "built", "dist")


def copy_context(sources: Mapping[str, Path], target: Path) -> None:
    """Copies each source to its name under `target`, with time and mode set alike."""
    for name, source in sources.items():
        destination = target / name
        destination.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, destination, ignore=shutil.ignore_patterns(*IGNORED))
        else:
            shutil.copyfile(source, destination)
            destination.chmod(source.stat().st_mode)
    for folder, _, files in os.walk(target, topdown=False):
        for name in files:
            path = Path(folder, name)
            path.chmod(0o755 if os.access(path, os.X_OK) and path.stat().st_mode & 0o100 else 0o644)
            os.utime(path, (EPOCH, EPOCH))
        Path(folder).chmod(0o755)
        os.utime(folder, (EPOCH, EPOCH))


def content_hash(context: Path, settings: Mapping[str, str]) -> str:
    """Of everything in a context made by `copy_context` and of the build's settings."""
    digest = hashlib.sha256()
    for name, value in sorted(settings.items()):
        digest.update(f"{name}={value}\n".encode())
    for path in _files(context):
        executable = "x" if path.stat().st_mode & 0o100 else "-"
        content = path.read_bytes()
        digest.update(f"{path.relative_to(context).as_posix()} {executable} {len(content)}\n".encode() + content)
    return digest.hexdigest()[:32]


def _files(folder: Path) -> Iterator[Path]:
    yield from sorted(path for path in folder.rglob("*") if path.is_file())
