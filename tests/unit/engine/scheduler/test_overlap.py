"""A step is planned before the one before it is settled: what comes back late belongs to nobody else."""

from __future__ import annotations

import pytest

from tests.support.engine_harness import Harness

PROMPT, OUTPUT = 9, 14


def prompt(number: int) -> list[int]:
    return [(number * 17 + i * 5) % 62 + 1 for i in range(PROMPT)]


def preempted(*, overlap: int, swap_slots: int, n: int, when: int, abort_after: int | None) -> Harness:
    """A batch request has nearly all blocks and all rows but one; after `when` steps an interactive one needs them.
    So many steps later its client leaves, if it does."""
    harness = Harness(blocks=4 * n + 2, max_requests=n, overlap=overlap, swap_slots=swap_slots)
    batch = {"slo_class": 2, "temperature": 1.0, "max_tokens": OUTPUT, "stop_token_ids": ()}
    harness.submit(1, prompt(1), n=n, **batch)
    for _ in range(when):
        harness.step()
    harness.submit(2, prompt(2), slo_class=0, max_tokens=5, stop_token_ids=())
    if abort_after is not None:
        for _ in range(abort_after):
            harness.step()
        harness.abort(1)
    harness.run()
    return harness


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("swap_slots", [0, 40], ids=["recompute", "swap"])
def test_no_token_is_lost_or_told_twice_whenever_a_request_is_preempted(swap_slots: int, n: int) -> None:
    """vllm #30142, PR #38624, PR #48245: a sample of before the preemption was taken for one of after it."""
    forced, swaps = dict.fromkeys((0, 1), 0), 0
    for overlap in forced:
        for when in range(OUTPUT):
            harness = preempted(overlap=overlap, swap_slots=swap_slots, n=n, when=when, abort_after=None)
            forced[overlap] += harness.scheduler.counters.preemptions
            swaps += harness.scheduler.counters.swaps
            harness.assert_solo(1)
            harness.assert_solo(2)
    assert min(forced.values()) > OUTPUT // 2
    assert swaps == (sum(forced.values()) if swap_slots else 0)


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("swap_slots", [0, 40], ids=["recompute", "swap"])
@pytest.mark.parametrize("abort_after", range(4))
def test_what_a_preempted_client_that_leaves_had_planned_reaches_nobody(
    abort_after: int, swap_slots: int, n: int
) -> None:
    """vllm #41190, PR #48245: output of an aborted request came to the one in its place."""
    told = {}
    for overlap in (0, 1):
        for when in range(OUTPUT - 4):
            harness = preempted(overlap=overlap, swap_slots=swap_slots, n=n, when=when, abort_after=abort_after)
            harness.assert_solo(2)
            for choice in range(n):
                heard = harness.heard.get((1, choice))
                tokens = heard.tokens if heard else []
                assert tokens == harness.expected(1, choice)[: len(tokens)]
            told[overlap, when] = harness.output(2)
    assert len({tuple(tokens) for tokens in told.values()}) == 1
