"""How each token id is spelled: its bytes, in a file that convert writes and the core reads, which has no tokenizer.

Magic, the number of ids, where each id's bytes end (4 bytes each, this machine's order), all bytes one after the other.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable
from itertools import accumulate
from pathlib import Path

SPELLING_FILE = "spelling"
"""In the run directory: a start's own."""
Spell = Callable[[int], bytes]
"""The text bytes of a token id; none for a special token, and for an id that the tokenizer does not have."""
_MAGIC = b"kvikspl1"
_ENDS = "I"


def unspelled(token: int) -> bytes:
    """For cores that serve no text, such as a simulation's."""
    return b""


def write_spelling(path: Path, spelled: Iterable[bytes]) -> None:
    """`spelled`: of the ids 0, 1 and so on. OSError when it cannot be written."""
    pieces = list(spelled)
    ends = array(_ENDS, accumulate(map(len, pieces)))
    path.write_bytes(_MAGIC + len(pieces).to_bytes(8, "little") + ends.tobytes() + b"".join(pieces))


def read_spelling(path: Path) -> Spell:
    """OSError when it cannot be read, ValueError when it is no such file."""
    content = path.read_bytes()
    head = len(_MAGIC) + 8
    if not content.startswith(_MAGIC):
        raise ValueError(f"{path} holds no spelling of tokens")
    count = int.from_bytes(content[len(_MAGIC) : head], "little")
    ends = array(_ENDS)
    first = head + count * ends.itemsize
    ends.frombytes(content[head:first])

    def spell(token: int) -> bytes:
        if token >= count:
            return b""
        return content[first + (ends[token - 1] if token else 0) : first + ends[token]]

    return spell
