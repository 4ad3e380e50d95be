"""Reading foreign JSON: how deep it is must be known before a parser follows it, in time linear in its size."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvik_engine.bounded_json import PEAK, brackets, json_object, nesting, read_json_object, strip_leaves
from kvik_engine.errors import StartError, StartReason
from kvik_engine.text.tokenizer import load_text_model
from kvik_engine.weights.safetensors import SafetensorsCheckpoint
from tests.support.byte_tokenizer import byte_tokenizer
from tests.support.model_files import write_safetensors_model

JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(alphabet='a"\\[]{}\n', max_size=8)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(alphabet='"\\[{', max_size=4), inner)),
)


def depth(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + max(map(depth, value.values()), default=0)
    if isinstance(value, list):
        return 1 + max(map(depth, value), default=0)
    return 0


@given(JSON)
def test_nesting_is_the_depth_of_valid_json(value: Any) -> None:
    for indent in (None, 1):
        assert nesting(json.dumps(value, indent=indent).encode()) == depth(value)


@pytest.mark.parametrize(
    "hostile", [b'"' + b'\\"' * 500_000, b"\\" * 1_000_000, b'"\\' * 500_000, b'"' * 999_999, b'"' + b"\\" * 999_999]
)
@pytest.mark.timeout(60)
def test_hostile_strings_take_linear_time(hostile: bytes) -> None:
    assert nesting(hostile) == 0


HALF = 1 << 20
"""Of the longest request body that is read."""
LONGEST: dict[str, tuple[bytes, int]] = {
    "flat": (b"[]" * HALF, 1),
    "to the limit": ((b"[" * 64 + b"]" * 64) * (HALF // 64), 64),
    "just beyond what is stripped": ((b"[" * 5 + b"]" * 5) * (HALF // 5), 5),
    "into the depth": (b"[" * HALF + b"]" * HALF, HALF),
    "only opened": (b"{" * (2 * HALF), 2 * HALF),
    "only closed": (b"}" * (2 * HALF), 0),
}


@pytest.mark.parametrize("name", LONGEST)
def test_few_brackets_of_the_longest_text_are_looked_at_one_by_one(name: str) -> None:
    """Each took 200 ns with the interpreter held: a body of 2 MiB stopped all streams for half a second."""
    text, depth = LONGEST[name]
    assert nesting(text) == depth
    _, left = strip_leaves(brackets(text))
    assert len(PEAK.findall(left)) <= len(text) // 10 + 2


@pytest.mark.parametrize("text", [b"[]]][[[", b"[[[]][", b"][", b"[[}{", b'[["]]]]'])
def test_the_depth_of_what_is_not_balanced_is_never_too_low(text: bytes) -> None:
    """A parser follows it up to its first fault."""
    depth = reached = 0
    for byte in text.partition(b'"')[0]:
        depth += 1 if byte in b"[{" else -1
        if depth < 0:
            break
        reached = max(reached, depth)
    assert nesting(text) >= reached


def test_text_in_another_encoding_is_no_sound_json() -> None:
    """Its bytes are not what the depth was counted in; RFC 8259 knows UTF-8 only."""
    with pytest.raises(StartError, match="no sound JSON"):
        json_object('{"a": "\\"["}'.encode("utf-16"), "x")


def test_brackets_before_a_string_without_an_end_count() -> None:
    assert nesting(b"[[[[" + b'"[[[[') == 4


def test_a_file_that_is_missing_too_large_or_no_object_has_its_reason(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    with pytest.raises(StartError) as caught:
        read_json_object(path)
    assert caught.value.reason is StartReason.MODEL_NOT_FOUND
    for content in (b"[]", b"{" + b" " * 100 + b"}", b"{"):
        path.write_bytes(content)
        with pytest.raises(StartError) as caught:
            read_json_object(path, max_bytes=50)
        assert caught.value.reason is StartReason.MODEL_INVALID
    path.write_bytes(b'{"a": 1}')
    assert read_json_object(path) == {"a": 1}


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"[" * 1_000_000, "nested deeper than 64"),
        (b'{"a":' * 64 + b"1" + b"}" * 64, None),
        (b'{"a":' * 65 + b"1" + b"}" * 65, "nested deeper than 64"),
        (("[" * 30_000).encode("utf-16"), "nested deeper than 64"),
        (b'{"a": {"b": 1, "b": 2}}', "a name stands twice"),
        (b'{"\xff": 1}', "no sound JSON"),
        (b'{"a": ' + b"9" * 100_000 + b"}", "no sound JSON"),
        (b"[1]", "no JSON object"),
        (b"", "no sound JSON"),
    ],
    ids=["very deep", "deep enough", "too deep", "UTF-16", "twice", "no text", "a long number", "a list", "empty"],
)
def test_what_is_no_sound_object_is_refused_by_the_name_it_is_given(data: bytes, words: str | None) -> None:
    if words is None:
        json_object(data, "x")
        return
    with pytest.raises(StartError) as caught:
        json_object(data, "the head of x")
    assert caught.value.reason is StartReason.MODEL_INVALID
    assert caught.value.message.startswith("the head of x is ")
    assert words in caught.value.message


def test_the_config_of_a_model_is_read_alike_by_text_and_weights(tmp_path: Path) -> None:
    """Two readers once bounded different things, and told the same fault in different words."""
    write_safetensors_model(tmp_path)
    byte_tokenizer().save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "config.json").write_text('{"eos_token_id": 1, "eos_token_id": 2}')
    told = []
    for read in (load_text_model, SafetensorsCheckpoint):
        with pytest.raises(StartError) as caught:
            read(tmp_path)
        told.append((caught.value.reason, caught.value.message))
    assert told[0] == told[1]
