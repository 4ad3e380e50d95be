"""What the head leaves of a step's prefill tokens to prompts that rank before it, on an engine that was idle before."""

from __future__ import annotations

import pytest

from tests.support.engine_harness import Harness

CHUNK, MOST = 16, 64
OVERLAPS = pytest.mark.parametrize("overlap", [0, 1])
BETTER_THAN = pytest.mark.parametrize(("better", "worse"), [(0, 1), (0, 2), (1, 2)])
LENGTHS = {0: 8, 1: 40, 2: 120}
"""Of prompts of each tier."""


def prompt(number: int, length: int) -> list[int]:
    return [(11 * number + 7 * i) % 63 + 1 for i in range(length)]


def beside_a_long_prompt(length: int, *, slo_class: int, of_class: int, **settings: object) -> tuple[Harness, int]:
    """A prompt of 3,200 tokens of class `of_class` has begun; how many steps a new one of `length` then takes."""
    defaults: dict[str, object] = {"blocks": 2000, "chunked_prefill_tokens": CHUNK, "max_batch_tokens": MOST}
    harness = Harness(**{**defaults, **settings})  # type: ignore[arg-type]
    harness.submit(1, prompt(1, 3200), slo_class=of_class, max_tokens=4, min_tokens=4)
    harness.step()
    harness.step()
    harness.submit(2, prompt(2, length), slo_class=slo_class, max_tokens=4, min_tokens=4)
    for steps in range(1, 100):
        harness.step()
        if (2, 0) in harness.heard:
            return harness, steps
    raise AssertionError("no first token")


@OVERLAPS
@BETTER_THAN
@pytest.mark.parametrize("tier", LENGTHS)
def test_a_better_class_does_not_wait_for_a_long_prompt_of_a_worse_one(
    tier: int, better: int, worse: int, overlap: int
) -> None:
    harness, steps = beside_a_long_prompt(LENGTHS[tier], slo_class=better, of_class=worse, overlap=overlap)
    assert steps <= 1 + LENGTHS[tier] // (MOST - CHUNK) + overlap
    harness.run()
    harness.assert_solo(1)
    harness.assert_solo(2)


@OVERLAPS
@pytest.mark.parametrize("slo_class", [0, 1, 2])
@pytest.mark.parametrize("length", [8, 16, 17, 40, 64])
def test_prompts_of_both_lower_tiers_pass_a_long_one_of_their_class(length: int, slo_class: int, overlap: int) -> None:
    harness, steps = beside_a_long_prompt(length, slo_class=slo_class, of_class=slo_class, overlap=overlap)
    assert steps <= -(-length // (MOST // 2)) + overlap
    harness.run()
    harness.assert_solo(1)
    harness.assert_solo(2)


@pytest.mark.parametrize("slo_class", [1, 2])
def test_a_worse_class_waits_for_the_head_of_a_better_one(slo_class: int) -> None:
    _, steps = beside_a_long_prompt(8, slo_class=slo_class, of_class=0)
    assert steps > 3000 // MOST


def test_the_head_goes_on_with_the_share_of_batch_prompts_while_a_better_class_starts() -> None:
    harness, _ = beside_a_long_prompt(LENGTHS[2], slo_class=0, of_class=2)
    assert [work.length for work in harness.fake.plans[2].work] == [MOST // 4, MOST - MOST // 4]


def test_the_head_gets_all_of_a_step_while_those_before_it_find_no_row() -> None:
    harness, _ = beside_a_long_prompt(8, slo_class=1, of_class=1, max_requests=1)
    assert [work.length for plan in harness.fake.plans[:50] for work in plan.work] == [MOST] * 50


@OVERLAPS
def test_a_batch_head_ends_although_interactive_prompts_keep_coming(overlap: int) -> None:
    harness = Harness(blocks=400, chunked_prefill_tokens=CHUNK, max_batch_tokens=MOST, overlap=overlap)
    harness.submit(1, prompt(1, 320), slo_class=2, max_tokens=1)
    for request_id in range(2, 100):
        harness.step()
        harness.submit(request_id, prompt(request_id, 40), slo_class=0, max_tokens=1)
        if (1, 0) in harness.heard:
            break
    assert harness.heard[1, 0].finish is not None
