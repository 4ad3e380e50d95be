"""Reading flag values: sizes, durations, fractions, counts, choices. Pure; ValueError says what is wrong."""

from __future__ import annotations

import re
from collections.abc import Callable

_SIZE = re.compile(r"(\d{1,18}(?:\.\d{1,9})?)(Ki|Mi|Gi|Ti|k|M|G|T)?B?\Z")
_SIZE_UNITS: dict[str | None, int] = {
    "Ki": 1 << 10,
    "Mi": 1 << 20,
    "Gi": 1 << 30,
    "Ti": 1 << 40,
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    None: 1,
}
_DURATION = re.compile(r"(?:\d{1,5}(?:h|m(?!s)|s|ms)){1,4}\Z")
_DURATION_PART = re.compile(r"(\d+)(h|ms|m|s)")
_DURATION_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}


def size(text: str) -> int:
    """Bytes: `268435456`, `256Mi`, `1.5G`."""
    match = _SIZE.match(text)
    if match is None:
        raise ValueError(f"{text!r} is not a size such as 256Mi")
    return int(float(match[1]) * _SIZE_UNITS[match[2]])


def duration(text: str) -> float:
    """Seconds: `500ms`, `30s`, `1h30m`, as Kubernetes writes durations (GEP-2257)."""
    if not _DURATION.match(text):
        raise ValueError(f"{text!r} is not a duration such as 30s")
    return sum(int(count) * _DURATION_UNITS[unit] for count, unit in _DURATION_PART.findall(text))


def fraction(text: str) -> float:
    """From 0.01 to 1."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.01 <= value <= 1.0:
        raise ValueError(f"{text!r} is not a fraction from 0.01 to 1")
    return value


def price(text: str) -> float:
    """An amount of money above 0: `2`, `1.99`."""
    if not re.fullmatch(r"\d{1,9}(?:\.\d{1,9})?", text) or float(text) == 0:
        raise ValueError(f"{text!r} is not a price above 0 such as 2.50")
    return float(text)


def count(low: int, high: int) -> Callable[[str], int]:
    """A reader of whole numbers from `low` to `high`."""

    def read(text: str) -> int:
        if not re.fullmatch(r"\d{1,12}", text) or not low <= int(text) <= high:
            raise ValueError(f"{text!r} is not a whole number from {low} to {high}")
        return int(text)

    return read


def power_of_two(low: int, high: int) -> Callable[[str], int]:
    """A reader of powers of two from `low` to `high`."""
    read_count = count(low, high)

    def read(text: str) -> int:
        value = read_count(text)
        if value & (value - 1):
            raise ValueError(f"{value} is no power of two")
        return value

    return read


def one_of(*words: str) -> Callable[[str], str]:
    """A reader of one of `words`."""

    def read(text: str) -> str:
        if text not in words:
            raise ValueError(f"{text!r} is none of {', '.join(words)}")
        return text

    return read


def digest(text: str) -> str:
    """`sha256:` and 64 hexadecimal digits."""
    if not re.fullmatch(r"sha256:[0-9a-f]{64}", text):
        raise ValueError(f"{text[:80]!r} is not sha256: and 64 hexadecimal digits")
    return text


def word(text: str) -> str:
    """Any text without spaces or control characters."""
    if not re.fullmatch(r"[\x21-\x7e]{1,253}", text):
        raise ValueError(f"{text[:80]!r} is empty, too long or has unprintable characters")
    return text
