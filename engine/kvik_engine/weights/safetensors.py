"""Folders of safetensors: heads checked by a bounded reader, then mapped by the safetensors library.

Format: https://huggingface.co/docs/safetensors (8 bytes of length, a JSON head, then the data).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvik_engine.bounded_json import json_object, read_json_object
from kvik_engine.errors import StartError, StartReason
from kvik_engine.weights.model_files import loaded_names

if TYPE_CHECKING:
    from torch import Tensor

MAX_HEAD_BYTES = 1 << 25
MAX_FILES = 1024
_ITEM_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
_KNOWN = frozenset({*_ITEM_BYTES, "I64", "I32", "I16", "I8", "U64", "U32", "U16", "U8", "BOOL", "F8_E4M3", "F8_E5M2"})


class SafetensorsCheckpoint:
    """See weights.checkpoint.Checkpoint."""

    def __init__(self, folder: Path) -> None:
        self.config: Mapping[str, object] = read_json_object(folder / "config.json")
        shapes: dict[str, tuple[int, ...]] = {}
        self._file_of: dict[str, Path] = {}
        for file in weight_files(folder):
            for name, shape in read_shapes(file).items():
                if name in shapes:
                    raise _invalid(file, f"the tensor {name[:80]!r} is also in {self._file_of[name].name}")
                shapes[name] = shape
                self._file_of[name] = file
        self.shapes: Mapping[str, tuple[int, ...]] = shapes

    def read(self, name: str, into: Tensor) -> None:
        from safetensors import SafetensorError, safe_open

        file = self._file_of[name]
        try:
            # Opened for this tensor alone: its pages leave the process with the mapping.
            with safe_open(file, framework="pt") as opened:
                into.copy_(opened.get_tensor(name))
        except SafetensorError as error:
            raise _invalid(file, str(error)) from error


def weight_files(folder: Path) -> list[Path]:
    """The files that hold the model's tensors: those of the index, else the only *.safetensors. The model's digest is
    over all of them."""
    index = folder / "model.safetensors.index.json"
    there = [path.name for path in folder.iterdir()]
    if index.exists():
        weight_map = read_json_object(index).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise _invalid(index, "weight_map must be an object")
        names = sorted({str(name) for name in weight_map.values()})
        digested = set(loaded_names([*there, *names]))
        for name in names:
            if Path(name).name != name or not name.endswith(".safetensors"):
                raise _invalid(index, f"{name[:80]!r} is no plain file name")
            if name not in digested:
                raise _invalid(index, f"{name[:80]!r} is none of the files that the model's digest is over")
    else:
        names = sorted(name for name in loaded_names(there) if name.endswith(".safetensors"))
        if len(names) > 1:
            names = [name for name in names if name == "model.safetensors"] or names
    if not names:
        raise StartError(StartReason.MODEL_NOT_FOUND, f"{folder} holds no .safetensors file")
    if len(names) > 1 and not index.exists():
        raise _invalid(folder, f"it holds {len(names)} .safetensors files and no model.safetensors.index.json")
    if len(names) > MAX_FILES:
        raise _invalid(index, f"it names {len(names)} files")
    return [folder / name for name in names]


def read_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Names and shapes in one file's head, all checked against the file's size.

    Raises StartError (ModelNotFound, ModelInvalid, ModelUnsupported).
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            prefix = file.read(8)
            if len(prefix) < 8:
                raise _invalid(path, "it ends before its head")
            (length,) = struct.unpack("<Q", prefix)
            if length > MAX_HEAD_BYTES:
                raise _invalid(path, f"its head of {length} bytes is larger than {MAX_HEAD_BYTES}")
            if length > size - 8:
                raise _invalid(path, "it ends in the middle of its head")
            head = json_object(file.read(length), f"the head of {path.name}")
    except OSError as error:
        raise StartError(StartReason.MODEL_NOT_FOUND, f"{path} cannot be read: {error.strerror}") from error
    head.pop("__metadata__", None)
    return _checked_shapes(path, head, size - 8 - length)


def _checked_shapes(path: Path, head: Mapping[str, Any], data_bytes: int) -> dict[str, tuple[int, ...]]:
    spans: list[tuple[int, int, str]] = []
    shapes: dict[str, tuple[int, ...]] = {}
    for name, entry in head.items():
        dtype, shape, start, end = _entry(path, name, entry)
        if not 0 <= start <= end <= data_bytes:
            raise _invalid(path, f"the tensor {name[:80]!r} lies at {start}:{end} of {data_bytes} bytes")
        if end - start != math.prod(shape) * _ITEM_BYTES[dtype]:
            raise _invalid(
                path, f"the tensor {name[:80]!r} takes {end - start} bytes, its shape {list(shape)} does not"
            )
        spans.append((start, end, name))
        shapes[name] = shape
    at = 0
    for start, end, name in sorted(spans):
        if start != at:
            raise _invalid(path, f"the tensor {name[:80]!r} lies over another one or behind a gap")
        at = end
    if at != data_bytes:
        raise _invalid(path, f"{data_bytes - at} bytes at its end belong to no tensor")
    return shapes


def _entry(path: Path, name: str, entry: object) -> tuple[str, tuple[int, ...], int, int]:
    label = f"the tensor {name[:80]!r}"
    if not isinstance(entry, dict):
        raise _invalid(path, f"{label} is not described by an object")
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in _KNOWN:
        raise _invalid(path, f"{label} has the unknown type {str(dtype)[:80]!r}")
    if dtype not in _ITEM_BYTES:
        raise StartError(
            StartReason.MODEL_UNSUPPORTED, f"{path.name}: {label} has the type {dtype}, which is not supported"
        )
    extents, span = _naturals(shape), _naturals(offsets)
    if extents is None or len(extents) > 8 or 0 in extents:
        raise _invalid(path, f"{label} has an impossible shape")
    if span is None or len(span) != 2:
        raise _invalid(path, f"{label} has impossible offsets")
    return dtype, extents, span[0], span[1]


def _naturals(values: object) -> tuple[int, ...] | None:
    """None unless it is a list of whole numbers below 2^48."""
    if not isinstance(values, list) or not all(type(v) is int and 0 <= v < 1 << 48 for v in values):
        return None
    return tuple(values)


def _invalid(path: Path, what: str) -> StartError:
    return StartError(StartReason.MODEL_INVALID, f"{path.name}: {what}")
