"""Files of a disk cache: one block each, checked by a sum over its content, and never seen half-written.

    DIR/kvik-kv-FINGERPRINT-NUMBER/ab/abcdef...-GROUP

A file is 8 bytes of magic, sha256 of the content, the content. FINGERPRINT stands for all that the meaning of the bytes
depends on (model digest, number format, layout, version), so another model or version never reads them. Engines may
share DIR: each holds a lock on a folder of its own, NUMBER, until its process ends.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator, Sequence
from hashlib import sha256
from itertools import count
from pathlib import Path

from kvik_engine.kv.host_pool import ContentKey

_MAGIC = b"kvikkv1\n"
_FOLDER = "kvik-kv-"
_PARTIAL = ".partial"
HEAD_BYTES = len(_MAGIC) + sha256().digest_size
_PAGE_BYTES = 4096


def bytes_on_disk(block_bytes: int) -> int:
    """What the file of one block takes of a file system, which gives whole pages.

    A kubelet measures an emptyDir so, and evicts the pod of one that takes more than its size.
    """
    return -(-(block_bytes + HEAD_BYTES) // _PAGE_BYTES) * _PAGE_BYTES


class CorruptBlock(Exception):
    """The file is not what was written."""


class BlockFiles:
    """A folder of one fingerprint that is this engine's alone. Every call may raise OSError."""

    def __init__(self, directory: Path, fingerprint: str) -> None:
        self._directory = directory
        self._prefix = f"{_FOLDER}{fingerprint}-"
        self._folder: Path | None = None
        self._lock: int | None = None
        """Descriptor of the folder. Never closed: the end of the process gives the folder back."""

    def open(self) -> None:
        """Take the folder that an engine like this one wrote to last, else a new one; remove what all other engines
        left that have ended, and what a crash left half-written. Fine if it is open, and again after a failure."""
        if self._folder is not None:
            return
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        alone = _locked(self._directory, wait=True)
        try:
            folder, lock = self._take(self._left())
            try:
                for partial in folder.glob(f"*/*{_PARTIAL}"):
                    partial.unlink()
            except OSError:
                os.close(lock)
                raise
            self._folder, self._lock = folder, lock
        finally:
            os.close(alone)

    def _left(self) -> Sequence[tuple[Path, int]]:
        """Folders that no engine holds any more, the last written one first, each with a lock on it."""
        left = []
        for folder in self._directory.glob(_FOLDER + "*"):
            try:
                left.append((folder, _locked(folder, wait=False)))
            except OSError:  # another engine's, or no folder at all
                continue
        try:
            return sorted(left, key=lambda one: _written_at(one[0]), reverse=True)
        except OSError:
            for _, lock in left:
                os.close(lock)
            raise

    def _take(self, left: Sequence[tuple[Path, int]]) -> tuple[Path, int]:
        mine = next((one for one in left if one[0].name.startswith(self._prefix)), None)
        for folder, lock in left:
            if (folder, lock) != mine:
                os.close(lock)
                shutil.rmtree(folder, ignore_errors=True)  # what cannot be removed is not in the way
        if mine is not None:
            return mine
        folder = next(new for number in count() if not (new := self._directory / f"{self._prefix}{number}").exists())
        folder.mkdir(mode=0o700)
        return folder, _locked(folder, wait=False)

    def list(self) -> Iterator[tuple[ContentKey, int]]:
        """Every block and its file's size, the oldest first."""
        found = []
        for path in self._opened.glob("*/*"):
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

    @property
    def _opened(self) -> Path:
        if self._folder is None:
            raise OSError(f"{self._directory} could not be opened")
        return self._folder

    def _path(self, key: ContentKey) -> Path:
        group, digest = key
        name = digest.hex()
        return self._opened / name[:2] / f"{name}-{group}"


def _locked(folder: Path, *, wait: bool) -> int:
    """A descriptor of the folder that holds a lock on it until it is closed. Without `wait`, BlockingIOError where
    another one holds it."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _written_at(folder: Path) -> int:
    """When a block of this folder got its name last, in ns; 0 if it never had one. That moves the time of the
    sub-folder only: the folder's own time says when a sub-folder was new."""
    return max((within.stat().st_mtime_ns for within in folder.iterdir()), default=0)


def _key_of(name: str) -> ContentKey | None:
    digest, _, group = name.partition("-")
    try:
        return int(group), bytes.fromhex(digest)
    except ValueError:
        return None
