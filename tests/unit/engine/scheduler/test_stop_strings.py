"""Stop strings that end a beam: found in the bytes of tokens exactly where the API process finds them in their text."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvik_engine.ipc.messages import FinishReason
from kvik_engine.params import BeamParams, EarlyStopping
from kvik_engine.scheduler.beam_search import Candidate, choose
from kvik_engine.scheduler.stop_strings import StopStrings
from kvik_engine.scheduler.swap_or_recompute import PreemptionMode
from kvik_engine.spelling import read_spelling, write_spelling
from kvik_engine.text.detokenizer import Detokenizer
from kvik_engine.text.stop import StopFinder
from kvik_engine.text.token_bytes import TokenBytes
from tests.support.engine_harness import Harness

_PIECES = st.lists(st.sampled_from(["a", "b", "ab", "ba", " ", "é", "日", ""]).map(str.encode), min_size=1, max_size=8)


def spell(token: int) -> bytes:
    """A fake model's tokens: one or two letters of four."""
    letters = "abcd"
    return (letters[token % 4] + (letters[token // 4 % 4] if token % 3 == 0 else "")).encode()


@given(
    pieces=_PIECES,
    cut=st.integers(1, 3),
    tokens=st.lists(st.integers(0, 7), min_size=1, max_size=30),
    stops=st.lists(st.text("ab é日", min_size=1, max_size=4), min_size=1, max_size=3),
)
def test_a_beam_ends_at_the_token_at_which_the_client_sees_a_stop_string(
    pieces: list[bytes], cut: int, tokens: list[int], stops: list[str]
) -> None:
    """Also where a character's bytes are spread over tokens."""
    cuts = [part for piece in pieces for part in (piece[:cut], piece[cut:])]
    table = TokenBytes(lambda token: cuts[token % len(cuts)], frozenset({5}), strip_leading_space=False)
    detokenizer, finder = Detokenizer(table), StopFinder(tuple(stops))
    strings, tail = StopStrings(stops, table.shown), b""
    for token in tokens:
        _, match = finder.feed(detokenizer.feed(token))
        assert strings.completed(tail, token) == (match is not None)
        if match is not None:
            break
        tail = strings.tail(tail, token)
        assert len(tail) < max(len(stop.encode()) for stop in stops)


def test_a_spelling_comes_back_as_it_was_written(tmp_path: Path) -> None:
    pieces = [b"", b"a", "é".encode(), b"", b"\xff\x00"]
    write_spelling(tmp_path / "spelling", pieces)
    spelled = read_spelling(tmp_path / "spelling")
    assert [spelled(token) for token in range(7)] == [*pieces, b"", b""]


def test_a_file_of_another_kind_is_no_spelling(tmp_path: Path) -> None:
    (tmp_path / "spelling").write_bytes(b"{}")
    with pytest.raises(ValueError, match="no spelling"):
        read_spelling(tmp_path / "spelling")


@pytest.mark.parametrize("early", EarlyStopping)
@pytest.mark.parametrize("width", [1, 2, 4])
def test_beams_that_come_to_a_stop_string_are_answers_as_in_a_plain_search(width: int, early: EarlyStopping) -> None:
    harness = Harness(blocks=200, spell=spell)
    beam = BeamParams(early_stopping=early, stop=("ab", "ddc"))
    for number in range(6):
        prompt = [(number * 17 + i * 5) % 62 + 1 for i in range(13)]
        harness.submit(number, prompt, n=width, max_tokens=16, min_tokens=number % 3, beam=beam)
    harness.run()

    for number in range(6):
        harness.assert_solo(number)
    texts = {key: b"".join(map(spell, heard.tokens)) for key, heard in harness.heard.items()}
    stopped = [texts[key] for key, heard in harness.heard.items() if heard.finish is FinishReason.STOP]
    assert any(text.endswith((b"ab", b"abb", b"ddc")) or b"ab" in text[-3:] for text in stopped)


@pytest.mark.parametrize("overlap", [0, 1])
@pytest.mark.parametrize("mode", PreemptionMode)
def test_preempted_searches_find_the_same_stop_strings(mode: PreemptionMode, overlap: int) -> None:
    for blocks, chunk in product((24, 40), (2, 16)):
        harness = Harness(
            blocks=blocks,
            chunked_prefill_tokens=chunk,
            max_batch_tokens=16,
            overlap=overlap,
            swap_slots=200,
            preemption_mode=mode,
            spell=spell,
        )
        for number in range(5):
            prompt = [(number * 17 + i * 5) % 62 + 1 for i in range(13)]
            harness.submit(number, prompt, n=3, max_tokens=4 + 4 * number, beam=BeamParams(stop=("ab", "cc")))
            harness.step()
        harness.run()
        for number in range(5):
            if number not in harness.refused:
                harness.assert_solo(number)


def test_a_search_ends_early_when_its_answers_do() -> None:
    steps = {}
    for stop in ((), ("a", "b", "c", "d")):
        harness = Harness(blocks=200, spell=spell)
        beam = BeamParams(early_stopping=EarlyStopping.COMPLETE, stop=stop)
        harness.submit(1, list(range(1, 14)), n=3, max_tokens=60, beam=beam)
        steps[stop] = harness.run()
    assert steps["a", "b", "c", "d"] < steps[()] / 4


def test_a_search_keeps_its_width_when_all_candidates_come_to_a_stop_string() -> None:
    candidates = [Candidate(0, token, -token, -float(token)) for token in range(1, 7)]
    choice = choose(candidates, 2, stops={3}, completes=lambda _: True)
    assert [one.token for one in choice.ended] == [1, 2]
    assert [one.token for one in choice.going_on] == [4, 5], "the stop token never goes on"
