"""The head of a GGUF file: metadata and the table of tensors. Standard library only, bounded, no tensor is touched.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (versions 2 and 3, little endian). Every length is
checked against the file before it is used (CVE-2026-7482 and CVE-2026-53923 came from trusting them).
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

from kvik_engine.errors import StartError, StartReason

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_ENTRIES = 1 << 16
"""Metadata entries, and tensors."""
MAX_ARRAY = 1 << 21
MAX_ARRAY_ITEMS = 1 << 22
"""Of all arrays together: items become Python objects, many times what they take in the file. Vocabularies of 256k
tokens with their scores, types and merges have less than a third."""
MAX_STRING = 1 << 22
MAX_DIMENSIONS = 4
MAX_HEAD_BYTES = 1 << 28
_DEFAULT_ALIGNMENT = 32


class _Kind(IntEnum):
    BOOL = 7
    STRING = 8
    ARRAY = 9


_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", _Kind.BOOL: "?", 10: "Q", 11: "q", 12: "d"}


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A row of the tensor table. `shape` has the fastest dimension first; `offset` counts from data_offset."""

    name: str
    shape: tuple[int, ...]
    ggml_type: int
    offset: int


@dataclass(frozen=True, slots=True)
class GGUFHeader:
    """What stands before the tensor data."""

    version: int
    metadata: dict[str, Any]
    """Values are int, float, bool, str or lists of one of them."""
    tensors: tuple[TensorInfo, ...]
    data_offset: int
    """Where tensor data begins in the file."""
    file_bytes: int


def read_header(path: Path) -> GGUFHeader:
    """Parse the head of `path`. StartError: ModelNotFound if it cannot be opened, ModelInvalid if it is not sound."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Reader(data).header()
    except OSError as error:
        raise StartError(StartReason.MODEL_NOT_FOUND, f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise StartError(StartReason.MODEL_INVALID, f"{path.name} is not a sound GGUF file: {error}") from error


class _Reader:
    """A cursor over the file; ValueError as soon as something does not fit."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._at = 0
        self._end = min(len(data), MAX_HEAD_BYTES)
        self._items = 0

    def header(self) -> GGUFHeader:
        if self._take(4) != MAGIC:
            raise ValueError("it does not begin with GGUF")
        version = self._scalar("I")
        if version not in VERSIONS:
            raise ValueError(f"version {version} is not 2 or 3")
        tensors = self._count(self._scalar("Q"), MAX_ENTRIES, "tensors")
        entries = self._count(self._scalar("Q"), MAX_ENTRIES, "metadata entries")
        metadata: dict[str, Any] = {}
        for _ in range(entries):
            key = self._string()
            if key in metadata:
                raise ValueError(f"the key {key[:80]!r} stands twice")
            metadata[key] = self._value(self._scalar("I"))
        table = tuple(self._tensor() for _ in range(tensors))
        if len({t.name for t in table}) != len(table):
            raise ValueError("a tensor name stands twice")
        return GGUFHeader(version, metadata, table, self._aligned(metadata), len(self._data))

    def _aligned(self, metadata: dict[str, Any]) -> int:
        alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
        if type(alignment) is not int or not 1 <= alignment <= 1 << 16 or alignment & (alignment - 1):
            raise ValueError("general.alignment is no power of two")
        offset = (self._at + alignment - 1) // alignment * alignment
        if offset > len(self._data):
            raise ValueError("it ends before its tensor data")
        return offset

    def _tensor(self) -> TensorInfo:
        name = self._string()
        dimensions = self._count(self._scalar("I"), MAX_DIMENSIONS, "dimensions")
        if not dimensions:
            raise ValueError(f"the tensor {name[:80]!r} has no dimension")
        shape = tuple(self._scalar("Q") for _ in range(dimensions))
        if any(not 1 <= d < 1 << 40 for d in shape):
            raise ValueError(f"the tensor {name[:80]!r} has an impossible shape")
        return TensorInfo(name, shape, self._scalar("I"), self._scalar("Q"))

    def _value(self, kind: int) -> Any:
        if kind == _Kind.STRING:
            return self._string()
        if kind == _Kind.ARRAY:
            return self._array()
        if kind not in _SCALARS:
            raise ValueError(f"a value has the unknown type {kind}")
        return self._scalar(_SCALARS[kind])

    def _array(self) -> list[Any]:
        kind = self._scalar("I")
        length = self._count(self._scalar("Q"), MAX_ARRAY, "array items")
        self._items = self._count(self._items + length, MAX_ARRAY_ITEMS, "items of all arrays")
        if kind == _Kind.STRING:
            return [self._string() for _ in range(length)]
        if kind not in _SCALARS:
            raise ValueError(f"an array holds the unknown type {kind}")
        layout = struct.Struct(f"<{length}{_SCALARS[kind]}")
        return list(layout.unpack(self._take(layout.size)))

    def _scalar(self, code: str) -> Any:
        layout = struct.Struct("<" + code)
        return layout.unpack(self._take(layout.size))[0]

    def _string(self) -> str:
        length = self._count(self._scalar("Q"), MAX_STRING, "characters")
        return self._take(length).decode(errors="replace")

    def _take(self, size: int) -> bytes:
        start, self._at = self._at, self._at + size
        if self._at > self._end:
            raise ValueError("it ends in the middle of its head")
        return self._data[start : self._at]

    @staticmethod
    def _count(value: int, limit: int, what: str) -> int:
        if value > limit:
            raise ValueError(f"{value} {what} are more than {limit}")
        return value
