"""Stop strings: the result must not depend on how the text comes in, and nothing shown is taken back.

Public bugs: vllm #3574, #2577, #57052, TGI #1254 (a stop string over token borders is shown, or missed).
"""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kvik_engine.text.stop import StopFinder

letters = st.text(alphabet="ab", max_size=24)
stops = st.lists(st.text(alphabet="ab", min_size=1, max_size=5), min_size=1, max_size=4).map(tuple)


def run(finder: StopFinder, parts: list[str]) -> tuple[list[str], str | None]:
    """(what was shown piece by piece, the stop that ended it)."""
    shown = []
    for part in parts:
        piece, match = finder.feed(part)
        shown.append(piece)
        if match is not None:
            return shown, match.stop
    return [*shown, finder.flush()], None


def expected(text: str, stop_strings: tuple[str, ...], *, include: bool) -> tuple[str, str | None]:
    """Character by character, by definition: the match that ends first, the longest of those."""
    for end in range(1, len(text) + 1):
        found = [s for s in stop_strings if text[:end].endswith(s)]
        if found:
            stop = max(found, key=len)
            return text[: end if include else end - len(stop)], stop
    return text, None


@given(letters, stops, st.lists(st.integers(0, 24), max_size=8), st.booleans())
@example("abc", ("abc", "b"), [1, 2], False)
@example("aab", ("ab", "aab"), [2], True)
def test_any_split_gives_the_result_of_the_whole_text(
    text: str, stop_strings: tuple[str, ...], cuts: list[int], include: bool
) -> None:
    borders = sorted({0, len(text), *(c for c in cuts if c <= len(text))})
    parts = [text[a:b] for a, b in pairwise(borders)]
    shown, stop = run(StopFinder(stop_strings, include=include), parts)
    assert ("".join(shown), stop) == expected(text, stop_strings, include=include)


@given(letters, stops)
def test_what_is_shown_is_always_a_beginning_of_the_final_text(text: str, stop_strings: tuple[str, ...]) -> None:
    final, _ = expected(text, stop_strings, include=False)
    shown, _ = run(StopFinder(stop_strings), list(text))
    for length in range(len(shown)):
        assert final.startswith("".join(shown[:length]))


@given(letters, stops)
def test_text_is_held_back_only_while_it_may_become_a_stop(text: str, stop_strings: tuple[str, ...]) -> None:
    finder = StopFinder(stop_strings)
    for character in text:
        _, match = finder.feed(character)
        if match is not None:
            return
        assert not finder.held or any(s.startswith(finder.held) for s in stop_strings)


def test_without_stop_strings_nothing_is_held_back() -> None:
    assert StopFinder(()).feed("abc") == ("abc", None)


@pytest.mark.parametrize(("parts", "want"), [(["ab", "x"], "abx"), (["a", "b", "ab"], "ab")])
def test_no_match_ends_before_min_tokens(parts: list[str], want: str) -> None:
    """Suppressed text is shown; a match that ends later counts."""
    finder = StopFinder(("ab",))
    shown = [finder.feed(part, may_match=i >= 2)[0] for i, part in enumerate(parts)]
    assert "".join(shown) + finder.flush() == want


def test_a_match_may_begin_before_min_tokens_and_end_after() -> None:
    finder = StopFinder(("ab",))
    assert finder.feed("xa", may_match=False) == ("x", None)
    text, match = finder.feed("b")
    assert text == ""
    assert match is not None
