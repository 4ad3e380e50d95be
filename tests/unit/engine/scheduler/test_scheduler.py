"""Each test is a sentence about whole runs of the scheduler on the fake model, at overlap depth 0 and 1."""

from __future__ import annotations

import pytest

from kvik_engine.ipc.messages import FinishReason
from kvik_engine.request import Life, Request
from kvik_engine.scheduler.preemption import PIN_AFTER
from kvik_engine.step import StepPlan
from tests.support.engine_harness import API, Harness
from tests.support.fake_runner import VOCAB

both_depths = pytest.mark.parametrize("overlap", [0, 1], ids=["overlap-0", "overlap-1"])


def prompt(length: int, first: int = 1) -> list[int]:
    return [(first + i) % (VOCAB - 1) + 1 for i in range(length)]


def lengths(plan: StepPlan) -> list[int]:
    return sorted(work.length for work in plan.work)


@both_depths
def test_requests_join_and_leave_at_every_step(overlap: int) -> None:
    harness = Harness(overlap=overlap)
    for request_id in range(6):
        harness.submit(request_id, prompt(3 + request_id, request_id), max_tokens=5 + request_id)
        harness.step()
    harness.run()
    for request_id in range(6):
        harness.assert_solo(request_id)
    assert max(len(plan.work) for plan in harness.fake.plans) > 1


@both_depths
def test_a_long_prompt_never_holds_up_rows_that_decode(overlap: int) -> None:
    harness = Harness(overlap=overlap, chunked_prefill_tokens=8, max_batch_tokens=64, blocks=200)
    harness.submit(1, prompt(4), max_tokens=30, stop_token_ids=())
    harness.step()
    harness.submit(2, prompt(100), max_tokens=2)
    harness.step()
    while len(harness.heard[1, 0].tokens) < 25:
        before = len(harness.heard[1, 0].tokens)
        harness.step()
        assert len(harness.heard[1, 0].tokens) == before + 1
    mixed = [plan for plan in harness.fake.plans[2:-1] if plan.tokens > 1]
    assert mixed
    assert all(plan.tokens <= 1 + 8 for plan in mixed)


def test_without_decoding_rows_a_prompt_takes_the_whole_budget() -> None:
    harness = Harness(chunked_prefill_tokens=8, max_batch_tokens=64, blocks=200)
    harness.submit(1, prompt(100), max_tokens=1)
    harness.run()
    assert [plan.tokens for plan in harness.fake.plans] == [64, 36]


def test_prefills_share_one_cap_by_class_then_arrival() -> None:
    harness = Harness(chunked_prefill_tokens=10, max_batch_tokens=64, blocks=200, max_requests=8)
    harness.submit(1, prompt(4), max_tokens=50, stop_token_ids=())
    harness.step()
    harness.submit(2, prompt(14, 5), slo_class=1, max_tokens=1)
    harness.submit(3, prompt(14, 9), slo_class=0, max_tokens=1)
    rows: list[dict[int, int]] = []
    for _ in range(3):
        harness.step()
        plan = harness.fake.plans[-1]
        row_of = {harness.request_row(request_id): request_id for request_id in (1, 2, 3)}
        rows.append({row_of.get(work.row, 3): work.length for work in plan.work})
    assert rows[0] == {1: 1, 3: 10}
    assert sorted(rows[1].values()) == [1, 4, 6]
    assert rows[2][1] == 1


@both_depths
def test_tokens_do_not_depend_on_the_chunk_size(overlap: int) -> None:
    for chunk in (1, 3, 16, 64):
        harness = Harness(overlap=overlap, chunked_prefill_tokens=chunk, max_batch_tokens=64, max_requests=8)
        for request_id in range(4):
            harness.submit(request_id, prompt(5 + 9 * request_id, request_id), max_tokens=6, temperature=1.0)
            harness.step()
        harness.run()
        for request_id in range(4):
            harness.assert_solo(request_id)


@both_depths
def test_a_warm_answer_equals_the_cold_one(overlap: int) -> None:
    """vllm #5543, sglang #38319."""
    harness = Harness(overlap=overlap)
    for request_id in range(3):
        harness.submit(request_id, prompt(19), max_tokens=6)
        harness.run()
        harness.assert_solo(request_id)
    assert harness.heard[0, 0].cached_tokens == 0
    assert harness.heard[1, 0].cached_tokens == harness.heard[2, 0].cached_tokens == 18


@both_depths
def test_a_request_is_not_preempted_when_it_has_work_in_the_step(overlap: int) -> None:
    """vllm #23347, #49097: under random priorities and a tiny pool the fake runner would see the wrong rows."""
    harness = Harness(blocks=9, overlap=overlap, prefix_cache=False, max_requests=6)
    for request_id in range(12):
        harness.submit(
            request_id, prompt(3, request_id), priority=(request_id * 7) % 5, max_tokens=20, stop_token_ids=()
        )
        harness.step()
    harness.run()
    assert harness.scheduler.counters.preemptions > 0
    for request_id in range(12):
        harness.assert_solo(request_id)


@both_depths
@pytest.mark.parametrize("prefix_cache", [False, True])
def test_a_preempted_request_goes_on_where_it_was(overlap: int, prefix_cache: bool) -> None:
    """nano-vllm PR #211: the request came back with the cached count of its first admission."""
    harness = Harness(blocks=8, overlap=overlap, prefix_cache=prefix_cache, max_batch_tokens=32)
    for request_id in range(3):
        harness.submit(request_id, prompt(6, 5 * request_id), max_tokens=14, stop_token_ids=(), temperature=1.0)
    harness.run()
    assert harness.scheduler.counters.preemptions > 0
    for request_id in range(3):
        harness.assert_solo(request_id)


@both_depths
def test_a_preempted_group_goes_on_with_all_its_choices(overlap: int) -> None:
    harness = Harness(blocks=9, overlap=overlap, prefix_cache=False, max_batch_tokens=32)
    harness.submit(1, prompt(9), slo_class=0, max_tokens=20, stop_token_ids=())
    harness.submit(2, prompt(9, 7), slo_class=2, n=3, max_tokens=8, temperature=1.0, stop_token_ids=())
    harness.run()
    assert harness.scheduler.counters.preemptions > 0
    harness.assert_solo(1)
    harness.assert_solo(2)


@both_depths
def test_a_preempted_groups_choices_share_the_prompt_again(overlap: int) -> None:
    """vllm #5578: shared blocks count once. Here also after preemption, without a prefix cache."""
    harness = Harness(blocks=14, overlap=overlap, prefix_cache=False, max_batch_tokens=8, max_requests=3)
    harness.submit(1, prompt(32), slo_class=2, n=3, max_tokens=6, temperature=1.0, stop_token_ids=())
    for _ in range(7):
        harness.step()
    assert len(harness.output(1)) > 0
    harness.submit(2, prompt(8, 9), slo_class=1, max_tokens=3, stop_token_ids=())
    harness.run()
    assert harness.scheduler.counters.preemptions == 1
    harness.assert_solo(1)
    harness.assert_solo(2)


def test_the_oldest_of_the_best_class_is_never_preempted() -> None:
    harness = Harness(blocks=8, prefix_cache=False, max_requests=4)
    for request_id in range(4):
        harness.submit(request_id, prompt(5, request_id), max_tokens=20, stop_token_ids=())
        harness.step()
    head = harness.scheduler.running[0]
    assert head.key == (API, 0)
    harness.run()
    assert head.preemptions == 0
    assert harness.scheduler.counters.preemptions > 0


@both_depths
def test_preemptions_stay_few(overlap: int) -> None:
    """vllm #18115: preempted and readmitted without end. Here at most twice a request, in a pool that holds two."""
    harness = Harness(blocks=16, overlap=overlap, prefix_cache=False, max_requests=8)
    for request_id in range(30):
        harness.submit(request_id, prompt(4, request_id), max_tokens=24, stop_token_ids=(), slo_class=request_id % 3)
    requests: list[Request] = []
    while harness.channel.inbox or harness.core.busy:
        harness.step()
        requests.extend(r for r in harness.scheduler.running if r not in requests)
    assert harness.scheduler.counters.preemptions <= 2 * len(requests)
    assert max(request.preemptions for request in requests) <= PIN_AFTER + 1
    for request_id in range(30):
        harness.assert_solo(request_id)


def test_growing_rows_do_not_take_the_blocks_owed_to_an_admitted_prompt() -> None:
    """vllm #45388: a prompt was admitted, then lost its room to others before it was computed."""
    harness = Harness(blocks=13, prefix_cache=False, chunked_prefill_tokens=4, max_batch_tokens=12)
    for request_id in range(3):
        harness.submit(request_id, prompt(3, request_id), max_tokens=20, stop_token_ids=())
    harness.step()
    harness.submit(3, prompt(28, 9), max_tokens=1)
    harness.step()
    long_prompt = harness.scheduler.running[-1]
    assert long_prompt.key == (API, 3)
    harness.run()
    assert long_prompt.preemptions == 0
    assert harness.scheduler.counters.preemptions > 0
    for request_id in range(4):
        harness.assert_solo(request_id)


def test_overlap_does_not_preempt_more_because_blocks_come_back_later() -> None:
    """At depth 1 a victim's blocks are free only when the step in flight is settled; one victim must still do."""
    preemptions = []
    for overlap in (0, 1):
        harness = Harness(blocks=24, overlap=overlap, prefix_cache=False)
        for request_id in range(6):
            harness.submit(request_id, prompt(6, request_id), max_tokens=20, stop_token_ids=())
        harness.run()
        preemptions.append(harness.scheduler.counters.preemptions)
    assert 0 < preemptions[1] <= preemptions[0] + 1


def test_a_waiting_request_of_a_better_class_takes_the_place_of_a_lower_one() -> None:
    harness = Harness(max_requests=2)
    for request_id in range(2):
        harness.submit(request_id, prompt(4, request_id), slo_class=2, max_tokens=40, stop_token_ids=())
    harness.step()
    harness.submit(2, prompt(4, 9), slo_class=0, max_tokens=3, stop_token_ids=())
    harness.step()
    assert harness.scheduler.running[0].key == (API, 2)
    assert harness.scheduler.counters.preemptions == 1
    harness.run()
    for request_id in range(3):
        harness.assert_solo(request_id)


@both_depths
def test_a_full_house_of_victims_leaves_its_budget_to_whom_it_made_room_for(overlap: int) -> None:
    """With as many batch tokens as rows, decodes that were preempted still took the whole budget: nothing moved."""
    harness = Harness(max_requests=3, max_batch_tokens=3, chunked_prefill_tokens=3, overlap=overlap)
    harness.submit(1, prompt(3), n=3, slo_class=2, max_tokens=20, temperature=1.0, stop_token_ids=())
    for _ in range(4):
        harness.step()
    harness.submit(2, prompt(3, 9), n=3, slo_class=0, max_tokens=3, temperature=1.0, stop_token_ids=())
    planned = len(harness.fake.plans)
    for _ in range(1 + overlap):
        harness.step()
    assert len(harness.fake.plans) > planned
    assert harness.scheduler.running[0].key == (API, 2)
    harness.run()
    harness.assert_solo(1)
    harness.assert_solo(2)


def test_an_old_batch_request_that_does_not_fit_does_not_hold_up_an_interactive_one() -> None:
    harness = Harness(max_requests=2)
    for request_id in range(3):
        harness.submit(request_id, prompt(4, request_id), slo_class=2, max_tokens=60, stop_token_ids=())
    harness.step(seconds=300.0)
    harness.submit(9, prompt(4, 9), slo_class=0, max_tokens=2, stop_token_ids=())
    harness.step()
    assert harness.scheduler.running[0].key == (API, 9)
    harness.run()


def test_a_waiting_request_of_the_same_class_preempts_nobody() -> None:
    harness = Harness(max_requests=2)
    for request_id in range(3):
        harness.submit(request_id, prompt(4, request_id), priority=-request_id, max_tokens=20, stop_token_ids=())
        harness.step()
    assert harness.scheduler.counters.preemptions == 0
    assert len(harness.scheduler.waiting) == 1
    harness.run()


def test_batch_work_does_not_starve_behind_an_endless_interactive_stream() -> None:
    harness = Harness(max_requests=1, max_batch_tokens=16)
    harness.submit(0, prompt(3), slo_class=2, max_tokens=2)
    request_id = 1
    while (0, 0) not in harness.heard or harness.heard[0, 0].finish is None:
        harness.submit(request_id, prompt(3, request_id), slo_class=0, max_tokens=4, stop_token_ids=())
        harness.step(0.5)
        request_id += 1
        assert request_id < 200, "the batch request starves"
    harness.assert_solo(0)


@both_depths
@pytest.mark.parametrize("when", range(12))
def test_an_abort_at_any_step_gives_all_blocks_back_and_disturbs_nobody(overlap: int, when: int) -> None:
    """vllm #46283, PR #18485; sglang PR #18803."""
    harness = Harness(blocks=20, overlap=overlap, chunked_prefill_tokens=4, max_batch_tokens=8)
    harness.submit(1, prompt(9), max_tokens=5, stop_token_ids=())
    harness.submit(2, prompt(9), n=2, max_tokens=6, temperature=1.0, stop_token_ids=())
    harness.submit(3, prompt(11), max_tokens=6, stop_token_ids=())
    for _ in range(when):
        harness.step()
    harness.abort(2)
    harness.step()
    assert all(request.key != (API, 2) for request in harness.scheduler.running)
    heard = {choice: len(harness.heard[2, choice].tokens) for choice in (0, 1) if (2, choice) in harness.heard}
    harness.run()
    assert {choice: len(harness.heard[2, choice].tokens) for choice in heard} == heard, "news after an abort"
    harness.assert_solo(1)
    harness.assert_solo(3)


@both_depths
def test_a_choice_that_is_aborted_leaves_the_others_running(overlap: int) -> None:
    harness = Harness(overlap=overlap)
    harness.submit(1, prompt(6), n=3, max_tokens=10, temperature=1.0, stop_token_ids=())
    for _ in range(4):
        harness.step()
    harness.abort(1, choice=1, accepted_tokens=1)
    harness.run()
    for choice in (0, 2):
        assert harness.heard[1, choice].tokens == harness.expected(1, choice)
    assert harness.heard[1, 1].finish is None


@both_depths
def test_when_the_choice_that_computes_the_prompt_is_aborted_another_one_takes_over(overlap: int) -> None:
    harness = Harness(overlap=overlap, chunked_prefill_tokens=4, max_batch_tokens=8)
    harness.submit(1, prompt(17), n=2, max_tokens=5, temperature=1.0, stop_token_ids=())
    harness.step()
    harness.abort(1, choice=0)
    harness.run()
    assert harness.heard[1, 1].tokens == harness.expected(1, 1)
    assert (1, 0) not in harness.heard


@both_depths
def test_choices_of_one_seed_differ_and_repeat(overlap: int) -> None:
    """vllm PR #11898: n > 1 with a seed gave equal samples; PR #16863: results of choices were mixed up."""
    runs = []
    for _ in range(2):
        harness = Harness(overlap=overlap)
        harness.submit(1, prompt(6), n=3, max_tokens=8, temperature=1.0, seed=11, stop_token_ids=())
        harness.run()
        runs.append([tuple(harness.output(1, choice)) for choice in range(3)])
    assert runs[0] == runs[1]
    assert len(set(runs[0])) == 3


@both_depths
def test_a_seed_gives_the_same_tokens_beside_any_neighbours(overlap: int) -> None:
    """vllm #51226: ignored when a neighbour has none."""
    outputs = []
    for neighbours in (0, 5):
        harness = Harness(overlap=overlap)
        for request_id in range(1, 1 + neighbours):
            harness.submit(request_id, prompt(4, request_id), temperature=1.0, seed=request_id)
        harness.submit(0, prompt(6), temperature=1.0, seed=5, stop_token_ids=())
        harness.run()
        outputs.append(harness.output(0))
    assert outputs[0] == outputs[1]


@both_depths
def test_choices_share_the_prompts_blocks(overlap: int) -> None:
    harness = Harness(overlap=overlap, blocks=64, max_batch_tokens=64, prefix_cache=False)
    harness.submit(1, prompt(41), n=8, max_tokens=3, temperature=1.0, stop_token_ids=())
    most = 0
    while harness.channel.inbox or harness.core.busy:
        harness.step()
        most = max(most, harness.kv.pool.owned)
    assert most <= 10 + 8
    harness.assert_solo(1)


@both_depths
def test_a_stop_token_ends_a_choice_and_later_samples_are_dropped(overlap: int) -> None:
    harness = Harness(overlap=overlap)
    harness.submit(1, prompt(5), max_tokens=60, stop_token_ids=tuple(range(8)))
    harness.run()
    heard = harness.heard[1, 0]
    assert heard.finish is FinishReason.STOP
    assert heard.stop_tokens == 1
    assert not set(heard.tokens) & set(range(8))
    harness.assert_solo(1)


@both_depths
def test_a_row_that_fails_takes_only_its_own_request_down(overlap: int) -> None:
    harness = Harness(overlap=overlap)
    harness.submit(1, prompt(5), max_tokens=8, stop_token_ids=())
    harness.submit(2, prompt(5, 9), max_tokens=8, n=2, temperature=1.0, stop_token_ids=())
    for _ in range(3):
        harness.step()
    row = harness.request_row(2, 1)
    assert row is not None
    harness.fake.fail_rows.add(row)
    harness.run()
    assert {harness.heard[2, choice].finish for choice in (0, 1)} == {FinishReason.ERROR}
    assert harness.heard[2, 1].error == "non-finite logits"
    harness.assert_solo(1)


@both_depths
def test_answers_do_not_carry_another_requests_secret(overlap: int) -> None:
    """ollama #17475, mlx-lm #965: with aborts and shared prefixes, each answer is still that of its own prompt."""
    harness = Harness(blocks=24, overlap=overlap, max_requests=6)
    shared = prompt(9)
    for request_id in range(60):
        harness.submit(request_id, [*shared, 1 + request_id % 60, 1 + request_id // 60], max_tokens=9)
        harness.step()
        if request_id % 4 == 3:
            harness.abort(request_id - 1)
    harness.run()
    for request_id in range(60):
        if request_id % 4 != 2:
            harness.assert_solo(request_id)


def test_a_row_changes_hands_within_one_step() -> None:
    harness = Harness(max_requests=1)
    harness.submit(1, prompt(3), max_tokens=2, stop_token_ids=())
    harness.submit(2, prompt(3, 9), max_tokens=2, stop_token_ids=())
    harness.run()
    handover = [plan for plan in harness.fake.plans if plan.ended and plan.started]
    assert [(plan.ended, plan.started[0].row) for plan in handover] == [((0,), 0)]


def test_an_idle_scheduler_plans_nothing() -> None:
    harness = Harness()
    assert harness.scheduler.plan(0.0) is None
    assert not harness.step()


def test_ended_requests_are_forgotten_by_the_scheduler() -> None:
    harness = Harness()
    harness.submit(1, prompt(3), max_tokens=2)
    harness.step()
    request = harness.scheduler.running[0]
    harness.run()
    assert request.life is Life.FINISHED
    assert harness.scheduler.running == []
    assert harness.scheduler.unfinished == 0
