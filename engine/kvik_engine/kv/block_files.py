"""Files of a disk cache: one block each, checked by a sum over its content, and never seen half-written.

    DIR/kvik-kv-FINGERPRINT/ab/abcdef...-GROUP

A file is 8 bytes of magic, sha256 of the content, the content. FINGERPRINT stands for all that the meaning of the bytes
depends on (model digest, number format, layout, version), so another model or version never reads them.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

from kvik_engine.kv.host_pool import ContentKey

_MAGIC = b"kvikkv1\n"
_FOLDER = "kvik-kv-"
_PARTIAL = ".partial"
HEAD_BYTES = len(_MAGIC) + sha256().digest_size


class CorruptBlock(Exception):
    """The file is not what was written."""


class BlockFiles:
    """The folder of one fingerprint. Every call may raise OSError."""

    def __init__(self, directory: Path, fingerprint: str) -> None:
        self._directory = directory
        self._root = directory / (_FOLDER + fingerprint)

    def open(self) -> None:
        """Make the folder, remove those of other fingerprints and what a crash left half-written."""
        self._root.mkdir(parents=True, exist_ok=True, mode=0o700)
        for other in self._directory.glob(_FOLDER + "*"):
            if other != self._root:
                shutil.rmtree(other)
        for partial in self._root.glob(f"*/*{_PARTIAL}"):
            partial.unlink()

    def list(self) -> Iterator[tuple[ContentKey, int]]:
        """Every block and its file's size, the oldest first."""
        found = []
        for path in self._root.glob("*/*"):
            key = _key_of(path.name)
            if key is not None:
                state = path.stat()
                found.append((state.st_mtime_ns, key, state.st_size))
        return ((key, size) for _, key, size in sorted(found))

    def write(self, key: ContentKey, content: memoryview) -> None:
        """Write a new file beside the final one, then give it its name."""
        path = self._path(key)
        path.parent.mkdir(exist_ok=True, mode=0o700)
        partial = path.with_name(path.name + _PARTIAL)
        try:
            with partial.open("wb") as file:
                file.write(_MAGIC + sha256(content).digest())
                file.write(content)
            os.replace(partial, path)
        except OSError:
            partial.unlink(missing_ok=True)
            raise

    def read(self, key: ContentKey, into: memoryview) -> None:
        """Fill `into`. Raises CorruptBlock, and then `into` may hold anything."""
        with self._path(key).open("rb", buffering=0) as file:
            head = file.read(HEAD_BYTES)
            filled = 0
            while count := file.readinto(into[filled:]):
                filled += count
            longer = bool(file.read(1))
        if head[: len(_MAGIC)] != _MAGIC or filled != len(into) or longer:
            raise CorruptBlock(f"{filled} bytes of {len(into)}")
        if sha256(into).digest() != head[len(_MAGIC) :]:
            raise CorruptBlock("its content does not match its sum")

    def remove(self, key: ContentKey) -> None:
        """Fine if it is not there."""
        self._path(key).unlink(missing_ok=True)

    def _path(self, key: ContentKey) -> Path:
        group, digest = key
        name = digest.hex()
        return self._root / name[:2] / f"{name}-{group}"


def _key_of(name: str) -> ContentKey | None:
    digest, _, group = name.partition("-")
    try:
        return int(group), bytes.fromhex(digest)
    except ValueError:
        return None
