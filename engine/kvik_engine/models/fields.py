"""Typed, bounded access to a mapping that somebody else wrote."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kvik_engine.errors import StartError, StartReason

MAX_WIDTH = 1 << 20
"""No width, count or length of a model that this engine can hold comes near it, except the context and vocabulary."""
MAX_LENGTH = 1 << 28


class Fields:
    """A key that is absent and one that is null are the same. Each reader raises StartError (ModelInvalid)."""

    def __init__(self, values: Mapping[str, object], origin: str) -> None:
        self._values = values
        self.origin = origin

    def has(self, key: str) -> bool:
        return self._values.get(key) is not None

    def integer(self, key: str, *, default: int | None = None, at_least: int = 1, at_most: int = MAX_WIDTH) -> int:
        value = self._values.get(key)
        if value is None:
            value = default
        if not isinstance(value, int) or isinstance(value, bool) or not at_least <= value <= at_most:
            raise self.invalid(key, f"a whole number from {at_least} to {at_most}")
        return value

    def number(self, key: str, *, default: float | None = None) -> float:
        value = self._values.get(key)
        if value is None:
            value = default
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < 1e12:
            raise self.invalid(key, "a positive number")
        return float(value)

    def flag(self, key: str, *, default: bool) -> bool:
        value = self._values.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.invalid(key, "true or false")
        return value

    def text(self, key: str, *, default: str | None = None) -> str:
        value = self._values.get(key)
        if value is None:
            value = default
        if not isinstance(value, str):
            raise self.invalid(key, "a text")
        return value

    def texts(self, key: str, *, count: int) -> Sequence[str]:
        """A list of exactly `count` texts."""
        value = self._values.get(key)
        if not isinstance(value, list) or len(value) != count or not all(isinstance(one, str) for one in value):
            raise self.invalid(key, f"a list of {count} texts")
        return value

    def mapping(self, key: str) -> Fields | None:
        value = self._values.get(key)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self.invalid(key, "an object")
        return Fields(value, f"{self.origin}: {key}")

    def invalid(self, key: str, expected: str) -> StartError:
        found = repr(self._values.get(key))[:80]
        return StartError(StartReason.MODEL_INVALID, f"{self.origin}: {key} must be {expected}, found {found}")

    def unsupported(self, what: str) -> StartError:
        return StartError(StartReason.MODEL_UNSUPPORTED, f"{self.origin}: {what} is not supported")
