"""Which files of a model the engine loads, and the digest over them. Standard library only."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from kvik_engine.errors import StartError, StartReason

LOADED_SUFFIXES = (".safetensors", ".json", ".jinja")
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A model on disk: a GGUF file, or a folder of safetensors with its JSON files."""

    root: Path
    """The folder that paths in the digest are relative to."""
    gguf: Path | None
    """The GGUF file; None for safetensors."""
    files: tuple[Path, ...]
    """Everything that is loaded, sorted bytewise by the path relative to `root`."""

    @property
    def weights(self) -> Path:
        """What the runner loads: the GGUF file or the folder."""
        return self.gguf or self.root


def find_model_files(path: Path) -> ModelFiles:
    """Look at a .gguf file or a folder. StartError: ModelNotFound, or ModelInvalid when the folder is ambiguous."""
    if path.is_file():
        if path.suffix != ".gguf":
            raise StartError(StartReason.MODEL_INVALID, f"{path} is neither a folder nor a .gguf file")
        return ModelFiles(root=path.parent, gguf=path, files=(path,))
    if not path.is_dir():
        raise StartError(StartReason.MODEL_NOT_FOUND, f"{path} does not exist")
    entries = sorted((p for p in path.iterdir() if p.is_file()), key=_bytewise)
    ggufs = [p for p in entries if p.suffix == ".gguf" and not p.name.startswith(".")]
    loaded = set(loaded_names([p.name for p in entries]))
    if any(name.endswith(".safetensors") for name in loaded):
        return ModelFiles(root=path, gguf=None, files=tuple(p for p in entries if p.name in loaded))
    if len(ggufs) > 1:
        names = ", ".join(p.name for p in ggufs[:5])
        raise StartError(StartReason.MODEL_INVALID, f"{path} holds {len(ggufs)} GGUF files ({names}): name one of them")
    if not ggufs:
        raise StartError(StartReason.MODEL_NOT_FOUND, f"{path} holds neither safetensors nor a GGUF file")
    return ModelFiles(root=path, gguf=ggufs[0], files=(ggufs[0],))


def loaded_names(names: list[str]) -> list[str]:
    """Which files of a folder of safetensors are loaded, and so in its digest; hidden ones never are.

    A repository may bring the same weights twice, as one consolidated file of the maker's own format beside the usual
    ones: then the usual ones count.
    """
    loaded = [name for name in names if name.endswith(LOADED_SUFFIXES) and not name.startswith(".")]
    usual = [name for name in loaded if not name.startswith("consolidated")]
    return usual if any(name.endswith(".safetensors") for name in usual) else loaded


def model_digest(model: ModelFiles) -> str:
    """`sha256:` + the SHA-256 of the `sha256sum` lines of the model's files."""
    lines = "".join(f"{file_sha256(p)}  {p.relative_to(model.root).as_posix()}\n" for p in model.files)
    return "sha256:" + hashlib.sha256(lines.encode()).hexdigest()


def check_digest(model: ModelFiles, expected: str | None) -> None:
    """StartError (DigestMismatch) unless the files are the expected ones; no expectation, no work."""
    if expected is None:
        return
    found = model_digest(model)
    if found != expected:
        raise StartError(StartReason.DIGEST_MISMATCH, f"{model.weights} has the digest {found}, not {expected}")


def file_sha256(path: Path) -> str:
    """SHA-256 of a file, as hexadecimal digits."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _bytewise(path: Path) -> bytes:
    return path.name.encode()
