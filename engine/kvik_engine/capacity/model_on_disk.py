"""Reads what a plan needs of a model: its shape, and what its files hold. Heads and tables only, never a tensor."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from kvik_engine.bounded_json import read_json_object
from kvik_engine.errors import StartError, StartReason
from kvik_engine.models.architectures import check_architecture
from kvik_engine.models.config import ModelConfig
from kvik_engine.models.read_config import from_hf
from kvik_engine.weights.gguf_config import config_from_gguf
from kvik_engine.weights.gguf_header import read_header
from kvik_engine.weights.gguf_tensors import READABLE, check_tensor_table, stored_bytes
from kvik_engine.weights.model_files import find_model_files
from kvik_engine.weights.safetensors import read_shapes, weight_files


@dataclass(frozen=True, slots=True)
class StoredTensors:
    """The tensors of a model's files: how many numbers, and what they take on disk."""

    format: str
    """gguf or safetensors."""
    elements: int
    bytes: int
    bytes_by_type: dict[str, int]
    """By GGML type; empty for safetensors."""


@dataclass(frozen=True, slots=True)
class ModelOnDisk:
    """A model's shape, and its tensors unless only the shape was given."""

    config: ModelConfig
    stored: StoredTensors | None


def read_model(path: Path) -> ModelOnDisk:
    """A config.json, a .gguf, or a folder with weights, or with a config.json alone.

    Raises StartError (ModelNotFound, ModelInvalid, ModelUnsupported), as a start of the engine would.
    """
    if path.is_file() and path.suffix == ".json":
        return ModelOnDisk(_supported(from_hf(read_json_object(path), path.name)), None)
    if path.is_dir() and not _holds_weights(path.iterdir()):
        config_file = path / "config.json"
        if not config_file.exists():
            raise StartError(
                StartReason.MODEL_NOT_FOUND, f"{path} holds neither config.json nor safetensors nor a GGUF file"
            )
        return ModelOnDisk(_supported(from_hf(read_json_object(config_file))), None)
    files = find_model_files(path)
    return _gguf(files.gguf) if files.gguf is not None else _safetensors(files.root)


def _supported(config: ModelConfig) -> ModelConfig:
    check_architecture(config.architecture)
    return config


def _holds_weights(entries: Iterable[Path]) -> bool:
    return any(entry.suffix in (".safetensors", ".gguf") for entry in entries)


def _gguf(path: Path) -> ModelOnDisk:
    header = read_header(path)
    check_tensor_table(header, path.name)
    by_type: dict[str, int] = {}
    for info in header.tensors:
        name = READABLE[info.ggml_type].name
        by_type[name] = by_type.get(name, 0) + stored_bytes(info)
    return ModelOnDisk(
        _supported(from_hf(config_from_gguf(header), path.name)),
        StoredTensors(
            format="gguf",
            elements=sum(math.prod(info.shape) for info in header.tensors),
            bytes=sum(by_type.values()),
            bytes_by_type=by_type,
        ),
    )


def _safetensors(folder: Path) -> ModelOnDisk:
    elements = stored = 0
    for file in weight_files(folder):
        shapes = read_shapes(file)
        elements += sum(math.prod(shape) for shape in shapes.values())
        stored += data_bytes(file)
    return ModelOnDisk(
        _supported(from_hf(read_json_object(folder / "config.json"))),
        StoredTensors(format="safetensors", elements=elements, bytes=stored, bytes_by_type={}),
    )


def data_bytes(file: Path) -> int:
    """What follows the head of a safetensors file whose head was checked."""
    with file.open("rb") as opened:
        return file.stat().st_size - 8 - int.from_bytes(opened.read(8), "little")
