"""Durations (GEP-2257) and Kubernetes quantities: text to number and back."""

import math
import re
from datetime import timedelta
from decimal import Decimal
from typing import Final

_DURATION: Final = re.compile(r"([0-9]{1,5}(h|m|s|ms)){1,4}")
_DURATION_PART: Final = re.compile(r"([0-9]{1,5})(h|ms|m|s)")
_UNIT: Final = {
    "h": timedelta(hours=1),
    "m": timedelta(minutes=1),
    "s": timedelta(seconds=1),
    "ms": timedelta(milliseconds=1),
}

_QUANTITY: Final = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+))(?:([eE][+-]?[0-9]+)|([KMGTPE]i|[numkMGTPE]))?")
_MAX_EXPONENT: Final = 18
"""As much as E. The API server takes 1e999999999 for a quantity; as a number of Python it would fill the memory."""
_SUFFIX: Final = {
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    "k": Decimal(10**3),
    "M": Decimal(10**6),
    "G": Decimal(10**9),
    "T": Decimal(10**12),
    "P": Decimal(10**15),
    "E": Decimal(10**18),
    "Ki": Decimal(2**10),
    "Mi": Decimal(2**20),
    "Gi": Decimal(2**30),
    "Ti": Decimal(2**40),
    "Pi": Decimal(2**50),
    "Ei": Decimal(2**60),
}


def parse_duration(text: str) -> timedelta:
    """`1h30m`, `120s`, `500ms`. Raises ValueError for anything else, also for zero."""
    if not _DURATION.fullmatch(text):
        raise ValueError(f"{text!r} is not a duration such as 500ms, 120s or 1h30m")
    total = sum((int(count) * _UNIT[unit] for count, unit in _DURATION_PART.findall(text)), timedelta())
    if not total:
        raise ValueError("a duration must be longer than 0s")
    return total


def format_duration(value: timedelta) -> str:
    """One unit, the largest that loses nothing and is read easily: `500ms`, `120s`, `30m`, `6h`."""
    if value % _UNIT["s"]:
        return f"{value // _UNIT['ms']}ms"
    if value % _UNIT["m"] or value < timedelta(minutes=10):
        return f"{value // _UNIT['s']}s"
    if value % _UNIT["h"]:
        return f"{value // _UNIT['m']}m"
    return f"{value // _UNIT['h']}h"


def parse_quantity(value: str | int) -> Decimal:
    """`300m` -> 0.3, `2500Mi` -> bytes. Raises ValueError for what the API server would refuse too."""
    match = _QUANTITY.fullmatch(str(value))
    if match is None:
        raise ValueError(f"{value!r} is not a quantity such as 300m or 256Mi")
    number, exponent, suffix = match.groups()
    if exponent and abs(int(exponent[1:])) > _MAX_EXPONENT:
        raise ValueError(f"{value!r} is out of range")
    return Decimal(number + (exponent or "")) * _SUFFIX.get(suffix, Decimal(1))


def format_bytes(value: Decimal) -> str:
    """Whole bytes, rounded up, in the largest binary unit that loses nothing: `6Gi`, `2500Mi`, `1500000000`."""
    count = math.ceil(value)
    for unit in ("Ti", "Gi", "Mi", "Ki"):
        if count and count % int(_SUFFIX[unit]) == 0:
            return f"{count // int(_SUFFIX[unit])}{unit}"
    return str(count)
