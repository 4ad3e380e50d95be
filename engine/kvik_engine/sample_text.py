"""The text on which a start measures what a quantised KV cache costs: its tokens, in a file that convert writes and the
core reads, which has no tokenizer."""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import Protocol

SAMPLE_FILE = "sample"
"""In the run directory: a start's own. There is none where nothing is quantised."""
TEXT = Path(__file__).with_suffix(".md")
"""Prose, code and tables. Never edited: figures of it should stay comparable."""
_IDS = "I"


class Encoder(Protocol):
    """A tokenizer, as much of it as is needed."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]: ...


def write_sample(path: Path, tokenizer: Encoder) -> None:
    """OSError when it cannot be written."""
    ids = tokenizer.encode(TEXT.read_text(encoding="utf-8"), add_special_tokens=True)
    path.write_bytes(array(_IDS, ids).tobytes())


def read_sample(path: Path) -> list[int] | None:
    """The token ids; None where there is no such file. Other OSErrors as they are."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    ids = array(_IDS)
    ids.frombytes(content)
    return ids.tolist()
