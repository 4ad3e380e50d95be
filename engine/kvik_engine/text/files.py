"""Bounded reading of the small files beside a model's weights: they come from outside and may be hostile."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from kvik_engine.errors import StartError, StartReason

MAX_TOKENIZER_BYTES = 64 << 20
MAX_CONFIG_BYTES = 4 << 20
MAX_DEPTH = 64


def read_json_object(path: Path, max_bytes: int = MAX_CONFIG_BYTES) -> dict[str, Any]:
    """The object in `path`. StartError (ModelInvalid) when it is too big, too deep or no JSON object."""
    return json_object(read_bytes(path, max_bytes), path.name)


def read_bytes(path: Path, max_bytes: int) -> bytes:
    """The file's content. StartError: ModelNotFound when it is missing, ModelInvalid when it is too big."""
    try:
        with path.open("rb") as file:
            data = file.read(max_bytes + 1)
    except OSError as error:
        raise StartError(StartReason.MODEL_NOT_FOUND, f"{path} cannot be read: {error.strerror}") from error
    if len(data) > max_bytes:
        raise StartError(StartReason.MODEL_INVALID, f"{path.name} is larger than {max_bytes} bytes")
    return data


def json_object(data: bytes, name: str) -> dict[str, Any]:
    """Parse a JSON object of at most MAX_DEPTH levels; `name` is what messages call it."""
    if nesting(data) > MAX_DEPTH:
        raise StartError(StartReason.MODEL_INVALID, f"{name} is nested deeper than {MAX_DEPTH} levels")
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise StartError(StartReason.MODEL_INVALID, f"{name} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise StartError(StartReason.MODEL_INVALID, f"{name} is not a JSON object")
    return value


def nesting(data: bytes) -> int:
    """How deep the brackets of a JSON text nest; exact for valid JSON, and never too low for what a parser follows."""
    depth = deepest = 0
    for byte in _STRING.sub(b"", data).translate(None, delete=_NOT_BRACKETS):
        if byte in b"[{":
            depth += 1
            deepest = max(deepest, depth)
        else:
            depth -= 1
    return deepest


_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"?', re.DOTALL)
"""Linear on any input: a string without an end matches too, so no position is tried twice."""
_NOT_BRACKETS = bytes(b for b in range(256) if b not in b"[]{}")
