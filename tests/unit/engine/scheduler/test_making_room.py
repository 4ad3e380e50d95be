"""Room for a better request that waits, taken from running ones."""

from __future__ import annotations

import pytest

from tests.support.engine_harness import Harness


def prompt(number: int, length: int) -> list[int]:
    return [(11 * number + 7 * i) % 63 + 1 for i in range(length)]


@pytest.mark.parametrize("overlap", [0, 1])
def test_a_long_batch_prompt_that_has_just_begun_gives_way(overlap: int) -> None:
    """What it still needs for its own prompt is no reason against taking its blocks."""
    harness = Harness(blocks=260, chunked_prefill_tokens=16, max_batch_tokens=64, overlap=overlap)
    harness.submit(0, prompt(1, 4), slo_class=0, max_tokens=100, min_tokens=100)
    harness.step()
    harness.submit(1, prompt(2, 960), slo_class=2, max_tokens=4, min_tokens=4)
    for _ in range(3):
        harness.step()
    harness.submit(2, prompt(3, 160), slo_class=0, max_tokens=4, min_tokens=4)
    for _ in range(160 // 16 + 1 + 2 * overlap):
        harness.step()

    assert (2, 0) in harness.heard
    assert harness.scheduler.counters.preemptions == 1
    harness.run()
    for request_id in range(3):
        harness.assert_solo(request_id)
