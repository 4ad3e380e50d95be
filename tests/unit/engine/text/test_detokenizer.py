"""Pieces joined are the whole text, however characters are spread over tokens."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders
from tokenizers.models import BPE

from kvik_engine.errors import StartError, StartReason
from kvik_engine.text.detokenizer import Detokenizer, decode
from kvik_engine.text.token_bytes import TokenBytes, token_bytes
from tests.support.byte_tokenizer import END, START, byte_text_model, byte_tokenizer

TABLE = byte_text_model().bytes
TOKENIZER = byte_tokenizer()


def pieces(table: TokenBytes, tokens: list[int]) -> list[str]:
    detokenizer = Detokenizer(table)
    return [*map(detokenizer.feed, tokens), detokenizer.flush()]


@given(st.text())
def test_text_survives_being_cut_into_bytes(text: str) -> None:
    assert "".join(pieces(TABLE, list(text.encode("utf-8")))) == text


@given(st.binary())
def test_broken_bytes_decode_as_the_tokenizers_library_decodes_them_whole(data: bytes) -> None:
    assert "".join(pieces(TABLE, list(data))) == TOKENIZER.decode(list(data))


@given(st.text(), st.binary(max_size=3))
def test_a_replacement_character_appears_only_when_no_character_is_possible(text: str, tail: bytes) -> None:
    """vllm #17448, #21951: streams must not show U+FFFD for a character whose bytes are still coming."""
    shown = pieces(TABLE, list(text.encode()))[:-1]
    assert all("\ufffd" not in piece for piece in shown) or "\ufffd" in text


def test_a_character_appears_with_its_last_byte() -> None:
    assert pieces(TABLE, list("😀".encode())) == ["", "", "", "😀", ""]


def test_an_incomplete_character_becomes_one_replacement_at_the_end() -> None:
    assert pieces(TABLE, list("a😀".encode()[:-1])) == ["a", "", "", "", "\ufffd"]


def test_special_tokens_are_not_shown() -> None:
    assert decode(TABLE, [START, *b"hi", END]) == "hi"


def test_a_special_token_inside_a_character_does_not_lose_its_bytes() -> None:
    emoji = list("😀".encode())
    assert decode(TABLE, [*emoji[:2], END, *emoji[2:]]) == "😀"


@pytest.fixture(scope="module")
def sentencepiece() -> Tokenizer:
    words = ["▁Hello", "▁world", "!", *(f"<0x{b:02X}>" for b in range(256))]
    tokenizer = Tokenizer(BPE(vocab={w: i for i, w in enumerate(words)}, merges=[], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return tokenizer


def test_byte_fallback_tokens_join_to_characters(sentencepiece: Tokenizer) -> None:
    table = token_bytes(sentencepiece, json.loads(sentencepiece.to_str()))
    ids = [0, *(3 + b for b in "ö".encode()), 1, 2]
    assert decode(table, ids) == sentencepiece.decode(ids) == "Helloö world!"


def test_an_answer_keeps_its_leading_space(sentencepiece: Tokenizer) -> None:
    """It continues a prompt: `Say` + ` world` must not become `Sayworld`."""
    table = token_bytes(sentencepiece, json.loads(sentencepiece.to_str()))
    assert "".join(pieces(table, [1, 2])) == " world!"


def test_an_unknown_decoder_is_refused_at_start() -> None:
    with pytest.raises(StartError) as caught:
        token_bytes(TOKENIZER, {"decoder": {"type": "WordPiece"}})
    assert caught.value.reason is StartReason.MODEL_UNSUPPORTED
