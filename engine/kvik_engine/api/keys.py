"""API keys from a file, one `NAME:KEY` a line.

NAME is the tenant, and may have several keys while one replaces another. Empty lines and lines that begin with # are
skipped. Only digests of the keys are kept. Kubernetes changes a mounted Secret under the running process, so the file
is looked at again every few seconds, with or without requests: a key that was taken away must not stay in force, nor
a mistake in the new file unnoticed, until somebody comes.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

from kvik_engine.errors import StartError, StartReason

log = logging.getLogger(__name__)

LOOK_SECONDS = 5.0
MAX_FILE_BYTES = 1 << 20
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_KEY = re.compile(r"[\x21-\x7e]{8,512}")


class KeysError(ValueError):
    """The file cannot be used. The message names the line, never a key."""


class KeysUnreadable(KeysError):
    """The file cannot be opened or read now; its content may be fine."""


class ApiKeys:
    """The keys of one file. One that becomes unreadable or wrong is reported, and the last good one stays in force."""

    def __init__(self, path: Path) -> None:
        """Raises KeysError."""
        self._path = path
        self._stamp = _stamp(path)
        self._tenants = read_keys(path)
        self._why_not: str | None = None

    @property
    def count(self) -> int:
        """Keys in force."""
        return len(self._tenants)

    @property
    def outdated(self) -> bool:
        """Whether they are those of an earlier content, because the present one cannot be used."""
        return self._why_not is not None

    def tenant_of(self, key: str) -> str | None:
        """Whose key it is; None for nobody's.

        Looked up by digest: how long that takes tells nothing of a key, since nobody can choose digests.
        """
        return self._tenants.get(_digest(key))

    async def follow(self) -> None:
        """Look again and again, off the event loop."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            await asyncio.to_thread(self.look)

    def look(self) -> None:
        """Read the file if it has changed, or could not be read. Any thread may ask for keys meanwhile."""
        stamp = _stamp(self._path)
        if stamp == self._stamp:
            return
        try:
            self._tenants = read_keys(self._path)
        except KeysError as error:
            if isinstance(error, KeysUnreadable):
                stamp = None  # its content may be fine: read again at the next look, changed or not
            if str(error) != self._why_not:
                log.error("the new API keys cannot be used, the old ones stay", extra={"why": str(error)})
            self._why_not = str(error)
        else:
            self._why_not = None
            log.info("API keys were read again", extra={"keys": self.count})
        self._stamp = stamp


def keys_or_refuse(path: str | None) -> ApiKeys | None:
    """The keys of `--api-keys-file`, if it is given. StartError (ConfigInvalid) when it cannot be used."""
    try:
        return None if path is None else ApiKeys(Path(path))
    except KeysError as error:
        raise StartError(StartReason.CONFIG_INVALID, f"--api-keys-file: {error}") from error


def read_keys(path: Path) -> Mapping[bytes, str]:
    """Digest of each key -> its name. Raises KeysError."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise KeysUnreadable(f"{path} cannot be read: {error.strerror}") from error
    if len(content) > MAX_FILE_BYTES:
        raise KeysError(f"{path} is larger than {MAX_FILE_BYTES} bytes")
    tenants: dict[bytes, str] = {}
    for number, line in enumerate(content.decode("ascii", "replace").splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        name, _, key = line.partition(":")
        if not _NAME.fullmatch(name) or not _KEY.fullmatch(key):
            raise KeysError(f"{path}, line {number}: not NAME:KEY with a key of 8 to 512 printable characters")
        if tenants.setdefault(_digest(key), name) != name:
            raise KeysError(f"{path}, line {number}: another name has the same key")
    if not tenants:
        raise KeysError(f"{path} holds no key")
    return tenants


def _digest(key: str) -> bytes:
    return sha256(key.encode("utf-8", "surrogateescape")).digest()


def _stamp(path: Path) -> tuple[int, int, int, int] | None:
    """Changes when the file or its permissions do, also by a symbolic link that points elsewhere."""
    try:
        status = path.stat()
    except OSError:
        return None
    return (status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size)
