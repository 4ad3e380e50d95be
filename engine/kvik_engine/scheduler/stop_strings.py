"""Where a beam's text comes to a stop string: found from the bytes of its tokens, without a tokenizer. Pure.

The API process finds stop strings in text (text.stop). A stop string's bytes are found in the bytes of a text exactly
where the string is found in the text, since UTF-8 has no character that ends within another.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvik_engine.spelling import Spell


class StopStrings:
    """Of one search. A beam keeps the `tail` of its text: as much of it as a stop string may begin in."""

    def __init__(self, stops: Sequence[str], spell: Spell) -> None:
        self._stops = [stop.encode() for stop in stops]
        self._keep = max(map(len, self._stops), default=1) - 1
        self._spell = spell

    def __bool__(self) -> bool:
        return bool(self._stops)

    def completed(self, tail: bytes, token: int) -> bool:
        """Whether a stop string ends within the token's bytes."""
        text = tail + self._spell(token)
        return any(text.find(stop, max(0, len(tail) - len(stop) + 1)) >= 0 for stop in self._stops)

    def tail(self, tail: bytes, token: int) -> bytes:
        """The tail with the token."""
        text = tail + self._spell(token)
        return text[max(0, len(text) - self._keep) :]
