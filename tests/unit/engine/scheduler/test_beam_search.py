"""The decider of a beam search: what goes on, what is kept, when it ends."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvik_engine.params import BeamParams, EarlyStopping, SamplingParams, score
from kvik_engine.scheduler.beam_search import Candidate, Choice, Complete, choose
from tests.support.plain_beam_search import plain_beam_search

STOPS = frozenset({0, 1})
_LOGPROBS = st.floats(-50, 0, allow_nan=False)


@st.composite
def step(draw: st.DrawFn) -> tuple[int, list[Candidate]]:
    """A width, and as many candidates a beam as the sampler lists."""
    width = draw(st.integers(1, 6))
    beams = draw(st.integers(1, width))
    candidates = []
    for beam in range(beams):
        before = draw(_LOGPROBS)
        tokens = draw(st.permutations(range(width + len(STOPS) + 2)))[: width + len(STOPS)]
        for token in tokens:
            own = draw(_LOGPROBS)
            candidates.append(Candidate(beam, token, own, before + own))
    return width, candidates


@given(step())
def test_as_many_beams_go_on_as_there_are_and_they_are_the_best(taken: tuple[int, list[Candidate]]) -> None:
    width, candidates = taken
    choice = choose(candidates, width, STOPS)

    assert len(choice.going_on) == width, "no beam is lost"
    assert len({(one.beam, one.token) for one in choice.going_on}) == width
    worst = min(one.logprob for one in choice.going_on)
    left_out = [one for one in candidates if one.token not in STOPS and one not in choice.going_on]
    assert all(one.logprob <= worst for one in left_out)
    assert [one.logprob for one in choice.going_on] == sorted((one.logprob for one in choice.going_on), reverse=True)


@given(step())
def test_what_ends_among_the_best_is_an_answer_and_nothing_else_is(taken: tuple[int, list[Candidate]]) -> None:
    width, candidates = taken
    choice = choose(candidates, width, STOPS)
    first = sorted(candidates, key=lambda one: (-one.logprob, one.beam, one.token))[:width]

    assert list(choice.ended) == [one for one in first if one.token in STOPS]


@given(step(), st.randoms(use_true_random=False))
def test_the_order_of_the_candidates_does_not_matter(taken: tuple[int, list[Candidate]], random: object) -> None:
    width, candidates = taken
    shuffled = list(candidates)
    random.shuffle(shuffled)  # type: ignore[attr-defined]

    assert choose(shuffled, width, STOPS) == choose(candidates, width, STOPS)


@given(step())
def test_without_a_length_penalty_no_answer_beats_the_beam_it_came_from(taken: tuple[int, list[Candidate]]) -> None:
    width, candidates = taken
    choice = choose(candidates, width, STOPS)

    for one in (*choice.ended, *choice.going_on):
        assert score(one.logprob, 7, 0.0) <= score(one.logprob - one.token_logprob, 6, 0.0) + 1e-9


@given(st.lists(st.tuples(_LOGPROBS, st.integers(1, 30))), st.integers(1, 5), st.sampled_from([0.0, 1.0, 2.0, -1.0]))
def test_the_best_answers_are_kept_in_order(answers: list[tuple[float, int]], width: int, penalty: float) -> None:
    complete = Complete[int](width, 30, BeamParams(length_penalty=penalty))
    for number, (logprob, tokens) in enumerate(answers):
        complete.add(number, logprob, tokens)
    scores = [score(logprob, tokens, penalty) for logprob, tokens in answers]

    assert complete.answers == sorted(range(len(answers)), key=lambda number: (-scores[number], number))[:width]


@given(st.data(), st.sampled_from(EarlyStopping), st.sampled_from([0.0, 0.5, 1.0, 2.0, -1.0]))
def test_a_search_that_is_surely_over_can_bring_nothing_better(
    data: st.DataObject, early: EarlyStopping, penalty: float
) -> None:
    width, most, now = 3, 20, data.draw(st.integers(1, 19))
    complete = Complete[int](width, most, BeamParams(length_penalty=penalty, early_stopping=early))
    for number in range(width):
        complete.add(number, data.draw(_LOGPROBS), data.draw(st.integers(1, now)))
    best = data.draw(_LOGPROBS)
    later = data.draw(st.integers(now, most))
    before = complete.answers
    over = complete.enough(best, now)
    complete.add(99, best + data.draw(_LOGPROBS), later)

    if early is EarlyStopping.COMPLETE:
        assert over
    elif over and early is EarlyStopping.SURE:
        assert complete.answers == before


def test_too_few_answers_are_never_enough() -> None:
    complete = Complete[str](2, 10, BeamParams(early_stopping=EarlyStopping.COMPLETE))
    complete.add("one", -1.0, 3)
    assert not complete.enough(-1000.0, 9)
    complete.add("two", -2.0, 3)
    assert complete.enough(-0.1, 9)


def test_equal_candidates_go_by_beam_and_token() -> None:
    same = [Candidate(beam, token, -1.0, -2.0) for beam in (1, 0) for token in (5, 4)]
    assert choose(same, 2, STOPS) == Choice((), (Candidate(0, 4, -1.0, -2.0), Candidate(0, 5, -1.0, -2.0)))


@pytest.mark.parametrize("width", [1, 2, 5])
def test_the_plain_search_finds_the_best_of_all_sequences_when_it_is_wide_enough(width: int) -> None:
    """The oracle itself, against every sequence there is."""

    def logprobs_after(tokens: list[int]) -> list[float]:
        return [-1.0 - (hash((tuple(tokens), token)) % 997) / 100 for token in range(3)]

    wide = SamplingParams(max_tokens=3, seed=0, n=27, beam=BeamParams(length_penalty=0.0))
    every = sorted(
        (
            sum(logprobs_after([9, *tokens[:place]])[tokens[place]] for place in range(3))
            for tokens in ([a, b, c] for a in range(3) for b in range(3) for c in range(3))
        ),
        reverse=True,
    )
    found = plain_beam_search(logprobs_after, [9], wide)
    assert [one.logprob for one in found[:width]] == pytest.approx(every[:width])
