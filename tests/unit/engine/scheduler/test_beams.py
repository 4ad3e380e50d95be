"""Beam search in the core on a fake model: answers equal a plain search over whole sequences, whatever happens."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from kvik_engine.ipc.messages import FinishReason
from kvik_engine.params import BeamParams, EarlyStopping
from kvik_engine.scheduler.swap_or_recompute import PreemptionMode
from tests.support.engine_harness import Harness
from tests.support.fake_runner import END_TOKEN, FULL, Windows, likely_after
from tests.support.plain_beam_search import plain_beam_search

OVERLAPS = pytest.mark.parametrize("overlap", [0, 1])
ENDS = tuple(range(12))
"""So many stop tokens that answers of the fake model end early."""


def prompt(number: int, length: int = 13) -> list[int]:
    return [(number * 17 + i * 5) % 62 + 1 for i in range(length)]


def search(width: int, **sampling: Any) -> dict[str, Any]:
    penalty = sampling.pop("length_penalty", 1.0)
    early = sampling.pop("early_stopping", EarlyStopping.LIKELY)
    beam = BeamParams(length_penalty=penalty, early_stopping=early)
    return {"n": width, "max_tokens": 12, "beam": beam, **sampling}


def most_owned(harness: Harness) -> int:
    """Runs to the end; blocks owned at the fullest moment."""
    most = 0
    while harness.channel.inbox or harness.core.busy:
        harness.step()
        most = max(most, harness.kv.pool.owned)
    harness.run()
    return most


@OVERLAPS
@pytest.mark.parametrize("width", [1, 2, 4, 8])
def test_answers_equal_a_plain_search(width: int, overlap: int) -> None:
    harness = Harness(blocks=200, overlap=overlap)
    harness.submit(1, prompt(1), **search(width))
    harness.run()

    harness.assert_solo(1)
    assert len({tuple(harness.output(1, choice)) for choice in range(width)}) == width


@pytest.mark.parametrize("early", EarlyStopping)
@pytest.mark.parametrize("penalty", [-1.0, 0.0, 1.0, 2.5])
def test_answers_that_end_are_ranked_as_in_a_plain_search(early: EarlyStopping, penalty: float) -> None:
    harness = Harness(blocks=200)
    for number in range(6):
        asked = search(4, length_penalty=penalty, early_stopping=early, stop_token_ids=ENDS, max_tokens=16)
        harness.submit(number, prompt(number), min_tokens=number % 3, **asked)
    harness.run()

    for number in range(6):
        harness.assert_solo(number)
        found = plain_beam_search(likely_after, prompt(number), harness.submitted[number].params)
        heard = [harness.heard[number, choice] for choice in range(4)]
        assert [one.finish is FinishReason.STOP for one in heard] == [one.stopped for one in found]
        assert [one.stop_tokens for one in heard] == [int(one.stopped) for one in found]
    assert any(heard.finish is FinishReason.STOP for heard in harness.heard.values())


def test_early_stopping_computes_less() -> None:
    steps = {}
    for early in EarlyStopping:
        harness = Harness(blocks=200)
        asked = search(3, early_stopping=early, stop_token_ids=ENDS, max_tokens=60, length_penalty=1.5)
        harness.submit(1, prompt(1), **asked)
        steps[early] = harness.run()
    assert steps[EarlyStopping.COMPLETE] < steps[EarlyStopping.SURE]
    assert steps[EarlyStopping.COMPLETE] <= steps[EarlyStopping.LIKELY] <= steps[EarlyStopping.SURE]


def test_beams_share_the_prompt_and_what_they_have_in_common() -> None:
    """Against as many requests of their own: the prompt once, and each beam's own tail."""
    asked = search(8, max_tokens=16, stop_token_ids=())
    at_once = {"max_batch_tokens": 1000, "chunked_prefill_tokens": 1000}
    beams = Harness(blocks=400, prefix_cache=False, **at_once)
    beams.submit(1, prompt(1, 100), **asked)
    separate = Harness(blocks=400, prefix_cache=False, **at_once)
    for number in range(8):
        separate.submit(number, prompt(number, 100), max_tokens=16, stop_token_ids=())
    shared, alone = most_owned(beams), most_owned(separate)

    assert shared <= 100 // 4 + 8 * (16 // 4 + 1)
    assert alone >= 8 * (100 // 4)
    assert beams.kv.pool.owned == 0


def test_a_beam_that_is_not_kept_gives_its_blocks_back_at_once() -> None:
    """At each moment no more blocks are owned than the tables of the live beams have."""
    harness = Harness(blocks=200, prefix_cache=False)
    harness.submit(1, prompt(1), **search(4, max_tokens=20))
    forks = 0
    while harness.channel.inbox or harness.core.busy:
        harness.step()
        held = {block for holding in harness.kv.holdings.values() for block in holding.blocks()}
        assert len(harness.kv.holdings) <= 4
        assert harness.kv.pool.owned == len(held | set(harness.kv.pins))
        forks = sum(len(plan.splits) for plan in harness.fake.plans)
    harness.assert_solo(1)
    assert forks > 0


def test_a_prompt_from_the_prefix_cache_is_shared_by_the_beams() -> None:
    harness = Harness(blocks=200)
    harness.submit(1, prompt(1, 32), max_tokens=1)
    harness.run()
    harness.submit(2, prompt(1, 32), **search(4))
    harness.run()

    harness.assert_solo(2)
    assert harness.heard[2, 0].cached_tokens >= 28


def test_a_salted_search_finds_no_other_salt() -> None:
    harness = Harness(blocks=200)
    harness.submit(1, prompt(1, 32), salt=b"a", **search(2))
    harness.run()
    harness.submit(2, prompt(1, 32), salt=b"b", **search(2))
    harness.run()

    harness.assert_solo(2)
    assert harness.heard[2, 0].cached_tokens == 0


def test_the_next_turn_finds_the_answer_that_was_given() -> None:
    harness = Harness(blocks=200)
    harness.submit(1, prompt(1, 16), **search(3, max_tokens=16))
    harness.run()
    turn = [*prompt(1, 16), *harness.output(1, 0), 5, 6, 7]
    harness.submit(2, turn, max_tokens=2)
    harness.run()

    harness.assert_solo(2)
    assert harness.heard[2, 0].cached_tokens >= 24, "most of the answer, too"


@OVERLAPS
@pytest.mark.parametrize("windows", [FULL, (None, 6), (5,)], ids=["full", "both", "window"])
@pytest.mark.parametrize("mode", [PreemptionMode.SWAP, PreemptionMode.RECOMPUTE])
def test_preempted_searches_come_back_with_the_same_answers(
    mode: PreemptionMode, windows: Windows, overlap: int
) -> None:
    preempted = swapped = 0
    for blocks, chunk in product((24, 31, 40), (2, 16)):
        harness = Harness(
            blocks=blocks * len(windows),
            chunked_prefill_tokens=chunk,
            max_batch_tokens=16,
            windows=windows,
            overlap=overlap,
            swap_slots=200,
            preemption_mode=mode,
        )
        for number in range(5):
            harness.submit(number, prompt(number), slo_class=2 - number % 3, **search(3, max_tokens=4 + 4 * number))
            harness.step()
        harness.run()
        for number in range(5):
            if number not in harness.refused:
                harness.assert_solo(number)
        preempted += harness.scheduler.counters.preemptions
        swapped += harness.scheduler.counters.swaps
    assert preempted
    assert bool(swapped) == (mode is PreemptionMode.SWAP)


@OVERLAPS
def test_beams_that_are_not_all_scheduled_wait_for_each_other(overlap: int) -> None:
    """Batch rows get a part of a step only while an interactive request waits."""
    harness = Harness(blocks=200, max_requests=6, max_batch_tokens=6, chunked_prefill_tokens=2, overlap=overlap)
    harness.submit(1, prompt(1), slo_class=2, **search(5))
    for _ in range(12):
        harness.step()
    harness.submit(2, prompt(2, 40), slo_class=0, max_tokens=6)
    beams_of_a_step = []
    while harness.channel.inbox or harness.core.busy:
        planned = len(harness.fake.plans)
        rows = {branch.row for branch in harness.kv.holdings if branch.request.key == (1, 1)}
        harness.step()
        beams_of_a_step += [sum(work.row in rows for work in plan.work) for plan in harness.fake.plans[planned:]]
    harness.run()

    harness.assert_solo(1)
    harness.assert_solo(2)
    assert any(0 < beams < 5 for beams in beams_of_a_step)


@OVERLAPS
@pytest.mark.parametrize("choice", [None, 2])
def test_an_abort_at_any_moment_frees_all_beams(choice: int | None, overlap: int) -> None:
    for steps in range(12):
        harness = Harness(blocks=200, overlap=overlap)
        harness.submit(1, prompt(1), **search(4, stop_token_ids=(END_TOKEN,)))
        harness.submit(2, prompt(2), **search(2))
        for _ in range(steps):
            harness.step()
        harness.abort(1, choice)
        harness.step()
        assert all(branch.request.key != (1, 1) for branch in harness.kv.holdings)
        harness.run()
        harness.assert_solo(2)


def test_a_failed_row_ends_the_search() -> None:
    harness = Harness(blocks=200)
    harness.submit(1, prompt(1), **search(3))
    for _ in range(4):
        harness.step()
    row = harness.request_row(1, 1)
    assert row is not None
    harness.fake.fail_rows.add(row)
    harness.run()

    assert all(harness.heard[1, choice].error for choice in range(3))


def test_log_probabilities_are_told_as_asked() -> None:
    for asked, listed in ((None, 0), (0, 0), (2, 2)):
        harness = Harness(blocks=200)
        harness.submit(1, prompt(1), logprobs=asked, **search(3))
        tokens = []
        while harness.channel.inbox or harness.core.busy:
            harness.core.step()
            tokens += [token for frame in harness.channel.frames for output in frame.outputs for token in output.tokens]
            harness.channel.frames.clear()
        assert tokens
        assert all((token.logprob is None) == (asked is None) for token in tokens)
        assert all(len(token.top) == listed for token in tokens)


def test_the_told_log_probabilities_add_up_to_the_answers_own() -> None:
    harness = Harness(blocks=200)
    harness.submit(1, prompt(1), logprobs=0, **search(4, stop_token_ids=ENDS))
    sums = dict.fromkeys(range(4), 0.0)
    while harness.channel.inbox or harness.core.busy:
        harness.core.step()
        for output in [output for frame in harness.channel.frames for output in frame.outputs]:
            sums[output.choice] += sum(token.logprob or 0.0 for token in output.tokens) + (output.stop_logprob or 0.0)
        harness.channel.frames.clear()
    found = plain_beam_search(likely_after, prompt(1), harness.submitted[1].params)
    assert list(sums.values()) == pytest.approx([one.logprob for one in found])
