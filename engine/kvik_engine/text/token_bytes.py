"""The bytes that each token id stands for, read from a tokenizer's decoder.

Two families cover the served models: byte-level BPE (GPT-2's printable alphabet for bytes) and SentencePiece BPE with
byte fallback (`▁` is a space, `<0x0A>` a byte, one leading space is stripped). With bytes per id, decoding is joining,
which is what makes exact incremental decoding possible.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer

from kvik_engine.errors import StartError, StartReason

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>\Z")


@dataclass(frozen=True, slots=True)
class TokenBytes:
    """`of(id)` gives a token's bytes (special tokens included); `strip_leading_space` as SentencePiece decoders do."""

    of: Callable[[int], bytes]
    special: frozenset[int]
    """Ids that are never shown."""
    strip_leading_space: bool

    def shown(self, token: int) -> bytes:
        """A token's bytes in a text; a special token has none there."""
        return b"" if token in self.special else self.of(token)


def token_bytes(tokenizer: Tokenizer, description: dict[str, Any]) -> TokenBytes:
    """Read the decoder of a tokenizer.json (`description` is its parsed text).

    Raises StartError (ModelUnsupported) for a decoder of neither family.
    """
    kinds = [step.get("type") for step in _steps(description.get("decoder"))]
    special = frozenset(t["id"] for t in description.get("added_tokens") or [] if t.get("special"))
    if kinds == ["ByteLevel"]:
        return TokenBytes(_cached(tokenizer, _byte_level), special, strip_leading_space=False)
    if "ByteFallback" in kinds and set(kinds) <= {"Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"}:
        return TokenBytes(_cached(tokenizer, _byte_fallback), special, strip_leading_space="Strip" in kinds)
    raise StartError(
        StartReason.MODEL_UNSUPPORTED, f"the tokenizer's decoder {kinds} is not known (ByteLevel or ByteFallback is)"
    )


def byte_alphabet() -> dict[str, int]:
    """GPT-2's printable character of each byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(b): b for b in printable}
    others = (b for b in range(256) if chr(b) not in alphabet)
    return alphabet | {chr(256 + i): b for i, b in enumerate(others)}


def _steps(decoder: dict[str, Any] | None) -> list[dict[str, Any]]:
    if decoder is None:
        return []
    return decoder["decoders"] if decoder.get("type") == "Sequence" else [decoder]


def _cached(tokenizer: Tokenizer, convert: Callable[[str], bytes]) -> Callable[[int], bytes]:
    known: dict[int, bytes] = {}

    def of(token: int) -> bytes:
        found = known.get(token)
        if found is None:
            found = known[token] = convert(tokenizer.id_to_token(token) or "")
        return found

    return of


_ALPHABET = byte_alphabet()


def _byte_level(token: str) -> bytes:
    try:
        return bytes(_ALPHABET[c] for c in token)
    except KeyError:  # an added token holds plain text
        return token.encode()


def _byte_fallback(token: str) -> bytes:
    byte = _BYTE_TOKEN.match(token)
    return bytes([int(byte[1], 16)]) if byte else token.replace("▁", " ").encode()
