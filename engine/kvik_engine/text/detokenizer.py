"""Token ids to text, piece by piece: the pieces joined are the text of all ids.

A character whose bytes are spread over tokens appears once it is complete; bytes that can no longer become a character
appear as U+FFFD (vllm #17448, #21951: a decoder that re-decodes a window loses its place on such input).
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable

from kvik_engine.text.token_bytes import TokenBytes

_utf8_decoder = codecs.getincrementaldecoder("utf-8")


class Detokenizer:
    """Of one choice. Special tokens add nothing.

    An answer continues a prompt, so its leading space is text; only a text of its own (`at_start`) loses the one that
    SentencePiece puts before it.
    """

    def __init__(self, table: TokenBytes, *, at_start: bool = False) -> None:
        self._table = table
        self._decoder = _utf8_decoder(errors="replace")
        self._at_start = at_start and table.strip_leading_space

    def feed(self, token: int) -> str:
        """The text that `token` completes, often but not always non-empty."""
        data = self._table.shown(token)
        if self._at_start and data:
            data = data.removeprefix(b" ")
            self._at_start = False
        return self._decoder.decode(data)

    def flush(self) -> str:
        """What is left at the end: U+FFFD for an incomplete character."""
        return self._decoder.decode(b"", final=True)


def decode(table: TokenBytes, tokens: Iterable[int]) -> str:
    """The text of all tokens, taken as a text of its own."""
    detokenizer = Detokenizer(table, at_start=True)
    return "".join(map(detokenizer.feed, tokens)) + detokenizer.flush()
