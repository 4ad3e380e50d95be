from __future__ import annotations

from kvik_engine.params import SamplingParams
from kvik_engine.request import Branch, Request
from kvik_engine.scheduler import shares
from tests.support.engine_harness import Harness


def decodes(*classes: int) -> list[Branch]:
    params = SamplingParams(max_tokens=1, seed=0)
    return [Request((1, i), [1], params, slo_class, 0, b"", 0.0).branches[0] for i, slo_class in enumerate(classes)]


def test_batch_rows_take_turns_and_others_are_not_held_back() -> None:
    branches = decodes(0, 1, 2, 2, 2, 2)
    seen: list[Branch] = []
    for step in range(1, 3):
        chosen = shares.rows_in_turn(branches, None, max_rows=8)
        assert chosen[:2] == branches[:2]
        assert len(chosen) == 2 + 2
        for branch in chosen:
            branch.last_step = step
        seen += chosen[2:]
    assert set(seen) == set(branches[2:])


def test_the_head_is_never_held_back_and_one_batch_row_always_goes_on() -> None:
    branches = decodes(2, 2, 2)
    chosen = shares.rows_in_turn(branches, branches[2].request, max_rows=1)
    assert len(chosen) == 2
    assert branches[2] in chosen


def test_batch_prompts_get_a_part_of_what_is_left() -> None:
    assert shares.prefill_share(100) == 25
    assert shares.prefill_share(1) == 1
    assert shares.prefill_share(0) == 0


def test_batch_rows_of_a_step_are_limited_while_an_interactive_prompt_is_computed_and_not_after() -> None:
    harness = Harness(blocks=400, max_requests=12, chunked_prefill_tokens=8, max_batch_tokens=64)
    for request_id in range(8):
        harness.submit(request_id, [1 + request_id] * 3, slo_class=2, max_tokens=60, stop_token_ids=())
    for _ in range(4):
        harness.step()
    harness.submit(9, [1 + i % 60 for i in range(30)], slo_class=0, max_tokens=30, stop_token_ids=())
    rows = []
    for _ in range(8):
        harness.step()
        rows.append(len(harness.fake.plans[-1].work))
    assert rows[:4] == [1 + 1 + 3, 1 + 3, 1 + 3, 1 + 3], (
        "the oldest batch row is the head until the interactive one runs"
    )
    assert rows[4:] == [1 + 8] * 4
    harness.run()
    for request_id in (*range(8), 9):
        harness.assert_solo(request_id)
