"""The private folder of one start: sockets, heartbeat, configuration. Standard library only.

`BASE/PID-RANDOM` with a lock that the launch process holds while it lives, so that a later start can sweep what a
killed one left, also in another PID namespace.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

LOCK_FILE = "lock"
CONFIG_FILE = "config.json"


class RunDir:
    """Made by `create`, removed by `remove`."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self._lock = lock

    @classmethod
    def create(cls, base: Path) -> RunDir:
        """A fresh folder (0700) below `base`, after sweeping those whose owner is gone.

        OSError when `base` cannot be used: also PermissionError when it is another user's, or open to others.
        """
        base.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = base.stat()
        if status.st_uid != os.getuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise PermissionError(errno.EPERM, "another user may write it", str(base))
        with _one_at_a_time(base):
            sweep(base)
            path = Path(tempfile.mkdtemp(prefix=f"{os.getpid()}-", dir=base))
            lock = os.open(path / LOCK_FILE, os.O_CREAT | os.O_RDWR, 0o600)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return cls(path, lock)

    @property
    def config_file(self) -> Path:
        return self.path / CONFIG_FILE

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def default_base() -> Path:
    """Below the temporary folder, one per user."""
    return Path(tempfile.gettempdir()) / f"kvik-{os.getuid()}"


def running(base: Path) -> Iterator[Path]:
    """Folders of engines that run now."""
    for path in sorted(base.glob("[!.]*")):
        if _locked(path):
            yield path


@contextlib.contextmanager
def _one_at_a_time(base: Path) -> Iterator[None]:
    """A start that creates its folder is not swept by another before it holds its lock."""
    descriptor = os.open(base / f".{LOCK_FILE}", os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def sweep(base: Path) -> None:
    """Remove folders whose owner is gone."""
    for path in base.glob("[!.]*"):
        if (path / LOCK_FILE).exists() and not _locked(path):
            shutil.rmtree(path, ignore_errors=True)


def _locked(path: Path) -> bool:
    try:
        descriptor = os.open(path / LOCK_FILE, os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    else:
        return False
    finally:
        os.close(descriptor)
