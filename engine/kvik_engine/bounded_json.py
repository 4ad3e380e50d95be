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
        value = json.loads(data.decode("utf-8-sig"), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise _invalid(name, f"no sound JSON: {error}") from error
    if not isinstance(value, dict):
        raise _invalid(name, "no JSON object")
    return value


def nesting(data: bytes) -> int:
    """How deep the brackets of a JSON text nest; exact for valid JSON, and never too low for what a parser follows."""
    levels, left = strip_leaves(brackets(data))
    depth = deepest = 0
    for opened, closed in PEAK.findall(left):
        depth += len(opened)
        deepest = max(deepest, depth)
        depth -= len(closed)
    return levels + deepest


def brackets(data: bytes) -> bytes:
    """The brackets outside strings, all written as `[` and `]`: a few passes in C, however hostile the text is."""
    unescaped = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    marks = unescaped.translate(_ROUND_TO_SQUARE, delete=_NOT_MARKS)
    return b"".join(marks.replace(b'""', b"").split(b'"')[::2])


def strip_leaves(brackets: bytes) -> tuple[int, bytes]:
    """Take away the innermost pairs, level by level, _STRIPPED times at most: how many levels went, and what is left.

    Each pair that is then innermost has stood around _STRIPPED others, so few of them are left to be looked at one by
    one: a tenth of the brackets.
    """
    for level in range(_STRIPPED):
        outer = brackets.replace(b"[]", b"")
        if len(outer) == len(brackets):
            return level, brackets
        brackets = outer
    return _STRIPPED, brackets


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        raise ValueError("a name stands twice in an object")
    return values


def _invalid(name: str, what: str) -> StartError:
    return StartError(StartReason.MODEL_INVALID, f"{name} is {what}")


_STRIPPED = 4
PEAK = re.compile(rb"(\[*)(\]*)")
_ROUND_TO_SQUARE = bytes.maketrans(b"{}", b"[]")
_NOT_MARKS = bytes(b for b in range(256) if b not in b'"[]{}')
