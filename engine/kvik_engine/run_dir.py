"""The private folder of one start: sockets, heartbeat, configuration, spelling. Standard library only.

`BASE/kvik-PID-RANDOM` with a lock that the launch process holds while it lives, so that a later start can sweep what a
killed one left, also in another PID namespace. BASE may hold anything else: what does not look like ours is left alone.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

LOCK_FILE = "lock"
CONFIG_FILE = "config.json"
_NAME = re.compile(r"kvik-\d+-[a-z0-9_]{8}\Z")
"""As `create` names folders: the prefix, then what tempfile.mkdtemp adds."""


class RunDir:
    """Made by `create`, removed by `remove`."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self._lock = lock

    @classmethod
    def create(cls, base: Path) -> RunDir:
        """A fresh folder (0700) below `base`, after sweeping those whose owner is gone.

        OSError when `base` cannot be used: also PermissionError when it is a link, another user's, or open to others.
        """
        base.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = base.lstat()
        if stat.S_ISLNK(status.st_mode):
            raise PermissionError(errno.EPERM, "it is a link, which another user may have planted", str(base))
        if status.st_uid != os.getuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise PermissionError(errno.EPERM, "another user may write it", str(base))
        with _one_at_a_time(base):
            sweep(base)
            path = Path(tempfile.mkdtemp(prefix=f"kvik-{os.getpid()}-", dir=base))
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
    return (path for path in sorted(_ours(base)) if _locked(path))


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
    for path in _ours(base):
        if (path / LOCK_FILE).exists() and not _locked(path):
            shutil.rmtree(path, ignore_errors=True)


def _ours(base: Path) -> Iterator[Path]:
    """Folders that `create` made for this user: by name, no links. Many programs keep a file called `lock`."""
    for path in base.glob("kvik-*"):
        with contextlib.suppress(OSError):  # swept by another start meanwhile
            status = path.lstat()
            if _NAME.match(path.name) and stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid():
                yield path


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
