"""Bounded reading of JSON from outside, which may be hostile: the small files of a model, the heads of its weights.

Standard library only. Whatever is wrong is a StartError that names the file.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from kvik_engine.errors import StartError, StartReason

MAX_CONFIG_BYTES = 4 << 20
MAX_DEPTH = 64


def read_json_object(path: Path, max_bytes: int = MAX_CONFIG_BYTES) -> dict[str, Any]:
    """The object in `path`. StartError: as read_bytes and json_object."""
    return json_object(read_bytes(path, max_bytes), path.name)


def read_bytes(path: Path, max_bytes: int) -> bytes:
    """The file's content. StartError: ModelNotFound when it is missing, ModelInvalid when it is too big."""
    try:
        with path.open("rb") as file:
            data = file.read(max_bytes + 1)
    except OSError as error:
        raise StartError(StartReason.MODEL_NOT_FOUND, f"{path} cannot be read: {error.strerror}") from error
    if len(data) > max_bytes:
        raise _invalid(path.name, f"larger than {max_bytes} bytes")
    return data


def json_object(data: bytes, name: str) -> dict[str, Any]:
    """Parse a JSON object of at most MAX_DEPTH levels. No name may stand twice: parsers differ in which one counts.

    `name` is what messages call it. StartError (ModelInvalid) for anything else.
    """
    if nesting(data) > MAX_DEPTH:
        raise _invalid(name, f"nested deeper than {MAX_DEPTH} levels")
    try:
        value = json.loads(data, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise _invalid(name, f"no sound JSON: {error}") from error
    if not isinstance(value, dict):
        raise _invalid(name, "no JSON object")
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


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        raise ValueError("a name stands twice in an object")
    return values


def _invalid(name: str, what: str) -> StartError:
    return StartError(StartReason.MODEL_INVALID, f"{name} is {what}")


_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"?', re.DOTALL)
"""Linear on any input: a string without an end matches too, so no position is tried twice."""
_NOT_BRACKETS = bytes(b for b in range(256) if b not in b"[]{}")
