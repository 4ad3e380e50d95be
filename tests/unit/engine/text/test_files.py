"""Reading foreign JSON: how deep it is must be known before a parser follows it, in time linear in its size."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvik_engine.errors import StartError, StartReason
from kvik_engine.text.files import nesting, read_json_object

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
@pytest.mark.timeout(10)
def test_hostile_strings_take_linear_time(hostile: bytes) -> None:
    assert nesting(hostile) == 0


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
