"""From what the user calls a model to files on this machine."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kvik_engine.errors import StartError, StartReason
from kvik_engine.exits import EXIT_START_ERROR
from kvik_engine.provenance import PROVENANCE_FILE, read_provenance

DEMO = "demo"
HUB = "hf://"
DEMO_NAME = "smollm2-135m-instruct"
DEMO_IMAGE_FILE = Path("/models/smollm2-135m-instruct/model.gguf")
"""Where the demo image carries it."""


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A model on disk. `name` is what it is called unless the user says otherwise."""

    path: Path
    name: str
    revision: str | None = None


def local_model(source: str, cache_dir: Path) -> LocalModel:
    """Resolve `source`, fetching it in a child process when it is remote and not in the cache.

    StartError as `kvik model pull` reports them.
    """
    if source == DEMO and DEMO_IMAGE_FILE.exists():
        return LocalModel(DEMO_IMAGE_FILE, DEMO_NAME)
    if source == DEMO or source.startswith(HUB):
        _check_source(source)
        folder = _pulled(source, cache_dir / "models" / _folder_name(source))
        return LocalModel(folder, _model_name(source), read_provenance(folder).revision)
    path = Path(source).absolute()
    if not path.exists():
        # What begins like a path is meant as one, by a pool above all, which has other sources.
        forms = "" if source.startswith("/") else "; a model is demo, a path, or hf://ORG/NAME@REV"
        raise StartError(StartReason.MODEL_NOT_FOUND, f"{source} does not exist{forms}")
    return LocalModel(path, path.stem if path.is_file() else path.name, read_provenance(path).revision)


def fetched_model(source: str, cache_dir: Path) -> LocalModel:
    """Resolve `source` without any network. StartError (ModelNotFound) when it is remote and not in the cache."""
    _check_source(source)
    folder = cache_dir / "models" / _folder_name(source)
    remote = source.startswith(HUB) or (source == DEMO and not DEMO_IMAGE_FILE.exists())
    if remote and not (folder / PROVENANCE_FILE).exists():
        raise StartError(
            StartReason.MODEL_NOT_FOUND,
            f"{source} is not in {cache_dir}, and nothing is fetched here: `kvik model pull {source}` does",
        )
    return local_model(source, cache_dir)


def cached_folder(source: str, environment: Mapping[str, str]) -> Path:
    """Where `source` is kept unless the user says otherwise."""
    return default_cache_dir(environment) / "models" / _folder_name(source)


def default_cache_dir(environment: Mapping[str, str]) -> Path:
    """XDG's cache folder; below the temporary folder for a user without a home."""
    base = environment.get("XDG_CACHE_HOME")
    if base:
        return Path(base) / "kvik"
    home = environment.get("HOME")
    return Path(home) / ".cache" / "kvik" if home else Path(tempfile.gettempdir()) / "kvik-cache"


def _check_source(source: str) -> None:
    """StartError (ConfigInvalid) for a hub's source that is none: also where its folder happens to be there."""
    from kvik_engine.weights.remote import parse_hub_source

    if source.startswith(HUB):
        parse_hub_source(source)


def _folder_name(source: str) -> str:
    """Another name for each source: a dash that could be taken for a part of a slash's `--` is written `%2D`."""
    if source == DEMO:
        return DEMO_NAME
    return re.sub("-(?=[-/])|(?<=[-/])-", "%2D", source.removeprefix(HUB)).replace("/", "--")


def _model_name(source: str) -> str:
    return DEMO_NAME if source == DEMO else source.partition("@")[0].rpartition("/")[2]


def _pulled(source: str, folder: Path) -> Path:
    """`kvik model pull` in a child, so that no HTTP library stays in launch. Quick when it is already there."""
    if not (folder / PROVENANCE_FILE).exists():
        command = [sys.executable, "-P", "-m", "kvik_engine", "model", "pull", source, "--to", str(folder)]
        code = subprocess.run(command, check=False, stdout=sys.stderr).returncode
        if code == EXIT_START_ERROR:
            raise SystemExit(EXIT_START_ERROR)  # the child has said why
        if code != 0:
            raise StartError(StartReason.DOWNLOAD_FAILED, f"fetching {source} ended with exit code {code}")
    return folder
