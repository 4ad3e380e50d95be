from __future__ import annotations

import gc
import weakref

import msgspec
import pytest

from kvik_engine.core.faults import FaultyRunner, InjectedFault, parse_faults, with_faults
from kvik_engine.core.stats import kv_tokens
from kvik_engine.errors import StartError, StartReason
from kvik_engine.ipc.messages import FinishReason
from kvik_engine.params import BeamParams
from tests.support.engine_harness import API, Harness
from tests.support.fake_runner import VOCAB, FakeRunner


def test_a_request_is_told_queued_then_its_tokens_then_its_end() -> None:
    harness = Harness()
    harness.submit(1, [1, 2, 3], max_tokens=3, stop_token_ids=())
    harness.core.step()
    frames = harness.channel.frames
    assert [frame.queued for frame in frames] == [[1]]
    assert [len(output.tokens) for frame in frames for output in frame.outputs] == [1]
    harness.run()
    assert harness.heard[1, 0].finish is FinishReason.LENGTH
    harness.assert_solo(1)


def test_logprobs_travel_with_their_token() -> None:
    harness = Harness()
    harness.submit(1, [1, 2, 3], max_tokens=1, logprobs=2, stop_token_ids=())
    harness.core.step()
    (output,) = harness.channel.frames[-1].outputs
    assert output.tokens[0].logprob == -1.0
    assert [top.token for top in output.tokens[0].top] == [0, 1]


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param({"prompt": []}, id="empty-prompt"),
        pytest.param({"prompt": [1, VOCAB]}, id="prompt-beyond-the-vocabulary"),
        pytest.param({"prompt": [-1]}, id="negative-token"),
        pytest.param({"slo_class": 3}, id="unknown-class"),
        pytest.param({"slo_class": -1}, id="negative-class"),
        pytest.param({"logit_bias": ((VOCAB, 1.0),)}, id="bias-beyond-the-vocabulary"),
        pytest.param({"logit_bias": ((1, float("nan")),)}, id="bias-not-a-number"),
        pytest.param({"stop_token_ids": (VOCAB,)}, id="stop-beyond-the-vocabulary"),
        pytest.param({"temperature": float("inf")}, id="infinite-temperature"),
        pytest.param({"temperature": -1.0}, id="negative-temperature"),
        pytest.param({"top_k": 0}, id="top-k-0"),
        pytest.param({"top_p": 0.0}, id="top-p-0"),
        pytest.param({"min_p": 1.5}, id="min-p-above-1"),
        pytest.param({"repetition_penalty": 0.0}, id="repetition-penalty-0"),
        pytest.param({"repetition_penalty": 1e-30}, id="tiny-repetition-penalty"),
        pytest.param({"temperature": 1e-9}, id="tiny-temperature"),
        pytest.param({"frequency_penalty": float("-inf")}, id="infinite-penalty"),
        pytest.param({"max_tokens": 0}, id="no-tokens"),
        pytest.param({"n": 0}, id="no-choices"),
        pytest.param({"seed": 1 << 64}, id="seed-of-65-bits"),
        pytest.param({"seed": -1}, id="negative-seed"),
        pytest.param({"min_tokens": 9, "max_tokens": 8}, id="min-above-max"),
        pytest.param({"logprobs": VOCAB + 1}, id="more-logprobs-than-tokens"),
    ],
)
def test_whatever_could_index_memory_wrongly_is_refused_before_any_kernel(wrong: dict[str, object]) -> None:
    """llama.cpp CVE-2026-21869: a negative count became an out-of-bounds write."""
    harness = Harness()
    arguments: dict[str, object] = {"prompt": [1, 2, 3], **wrong}
    prompt = arguments.pop("prompt")
    harness.submit(1, prompt, **arguments)  # type: ignore[arg-type]
    harness.submit(2, [1, 2, 3])
    harness.run()
    assert harness.refused[1].code == "invalid"
    harness.assert_solo(2)
    assert all(start.tokens == (1, 2, 3) for plan in harness.fake.plans for start in plan.started)


def test_prompt_and_outputs_beyond_the_context_are_refused() -> None:
    harness = Harness(context=10)
    harness.submit(1, [1] * 5, max_tokens=6)
    harness.submit(2, [1] * 5, max_tokens=5)
    harness.run()
    assert harness.refused[1].code == "too_long"
    harness.assert_solo(2)


def test_more_choices_than_rows_are_refused() -> None:
    harness = Harness(max_requests=2)
    harness.submit(1, [1, 2], n=3)
    harness.step()
    assert harness.refused[1].code == "too_long"


def test_a_full_queue_refuses_with_a_delay_and_counts_it() -> None:
    harness = Harness(max_requests=1, max_queued_requests=2)
    for request_id in range(5):
        harness.submit(request_id, [1, 2, 3])
    harness.step()
    assert sorted(harness.refused) == [3, 4]
    assert {refusal.code for refusal in harness.refused.values()} == {"queue_full"}
    assert all(1.0 <= (refusal.retry_after or 0.0) <= 60.0 for refusal in harness.refused.values())
    assert harness.core.stats.refused == 2
    harness.run()
    harness.assert_solo(0)


def test_a_burst_that_finds_free_rows_is_not_refused() -> None:
    harness = Harness(max_requests=8, max_queued_requests=2)
    for request_id in range(8):
        harness.submit(request_id, [1, 2, 3])
    harness.run()
    assert harness.refused == {}


def test_choices_count_as_rows_not_as_requests_against_the_queue() -> None:
    """Two requests of four choices take all eight rows, so the next ones wait, however many rows were free before."""
    harness = Harness(max_requests=8, max_queued_requests=2)
    for request_id in range(12):
        harness.submit(request_id, [1, 2, 3], n=4, max_tokens=4)
    harness.step()
    assert len(harness.scheduler.running) == 2
    assert len(harness.scheduler.waiting) == 2
    assert sorted(harness.refused) == list(range(4, 12))
    harness.run()


def test_rows_without_room_in_the_cache_do_not_lengthen_the_queue() -> None:
    harness = Harness(blocks=20, max_requests=8, max_queued_requests=1)
    for request_id in range(8):
        harness.submit(request_id, [request_id] * 24, max_tokens=4)
    harness.step()
    assert len(harness.scheduler.waiting) == 1
    assert len(harness.scheduler.running) + len(harness.refused) == 7
    harness.run()


def test_a_request_that_can_never_fit_is_told_so_though_the_queue_is_full() -> None:
    harness = Harness(max_requests=1, max_queued_requests=0)
    harness.submit(1, [1, 2, 3], max_tokens=5)
    harness.submit(2, [1, 2, 3], n=2)
    harness.step()
    assert harness.refused[2].code == "too_long"
    harness.run()


def test_a_queue_of_none_still_serves_what_can_start_at_once() -> None:
    harness = Harness(max_requests=1, max_queued_requests=0)
    harness.submit(1, [1, 2, 3], max_tokens=5, stop_token_ids=())
    harness.step()
    harness.submit(2, [1, 2, 3])
    harness.step()
    assert harness.refused[2].code == "queue_full"
    harness.run()
    harness.assert_solo(1)


def test_a_failed_row_leaves_nothing_for_others_to_find() -> None:
    """Its KV may be as wrong as its logits: the next request with this prompt must compute it anew."""
    harness = Harness()
    harness.core._runner = FaultyRunner(harness.fake, parse_faults("row-error@1"))
    for request_id in (1, 2):
        harness.submit(request_id, list(range(1, 22)), max_tokens=4)
        harness.run()
    assert harness.heard[1, 0].finish is FinishReason.ERROR
    assert harness.heard[2, 0].cached_tokens == 0
    harness.assert_solo(2)


def test_the_delay_follows_the_waiting_prompts_and_the_measured_speed() -> None:
    harness = Harness(max_requests=1, max_queued_requests=1, runner=FakeRunner(block_tokens=4, seconds=0.5))
    harness.submit(1, [1] * 16, max_tokens=30, stop_token_ids=())
    harness.step()
    harness.submit(2, [2] * 100)
    harness.submit(3, [1] * 4)
    harness.step()
    assert harness.core.stats.snapshot(harness.scheduler).prefill_tokens_per_second == 32.0
    assert harness.refused[3].retry_after == pytest.approx(100 / 32.0)
    harness.run()


def test_a_request_id_in_use_is_refused_and_free_again_afterwards() -> None:
    """vllm #10583: a second request of the same id took over the first."""
    harness = Harness()
    harness.submit(1, [1, 2, 3], max_tokens=4, stop_token_ids=())
    harness.step()
    harness.submit(1, [1, 2, 3], max_tokens=4, stop_token_ids=())
    harness.step()
    assert harness.refused[1].code == "duplicate"
    harness.run()
    harness.assert_solo(1)
    harness.heard.clear()
    harness.submit(1, [4, 5], max_tokens=4, stop_token_ids=())
    harness.run()
    harness.assert_solo(1)


def test_the_same_request_id_of_two_api_processes_is_two_requests() -> None:
    harness = Harness()
    harness.submit(1, [1, 2, 3], max_tokens=30, stop_token_ids=())
    harness.submit(1, [1, 2, 3], max_tokens=30, stop_token_ids=(), api_id=2)
    harness.core.step()
    assert len(harness.scheduler.running) == 2
    harness.leave(2)
    harness.core.step()
    assert [request.key for request in harness.scheduler.running] == [(API, 1)]


def test_when_an_api_process_goes_its_requests_go_within_a_step() -> None:
    harness = Harness(max_requests=2)
    for request_id in range(4):
        harness.submit(request_id, [1, 2, 3], max_tokens=50, stop_token_ids=())
    harness.step()
    harness.leave()
    harness.step()
    assert not harness.core.busy
    harness.core.check_idle()


def test_an_abort_of_a_request_that_ended_or_never_was_is_ignored() -> None:
    harness = Harness()
    harness.submit(1, [1, 2, 3])
    harness.run()
    harness.abort(1)
    harness.abort(99, choice=0)
    harness.run()
    harness.assert_solo(1)


def test_a_request_aborted_in_the_message_behind_its_submit_never_runs() -> None:
    harness = Harness()
    harness.submit(1, [1, 2, 3])
    harness.abort(1)
    harness.run()
    assert harness.fake.plans == []


class Prompt(list[int]):
    """A list that tells when it is freed."""


@pytest.mark.parametrize("sampling", [{}, {"n": 3}, {"n": 2, "beam": BeamParams()}], ids=["one", "choices", "beams"])
@pytest.mark.parametrize("overlap", [0, 1])
def test_prompts_of_requests_that_ended_were_aborted_or_refused_are_freed_without_a_collection(
    overlap: int, sampling: dict[str, object]
) -> None:
    harness = Harness(overlap=overlap)
    prompts: list[weakref.ref[Prompt]] = []
    gc.disable()
    try:
        for request_id in range(5):
            asked = {"n": harness.max_requests + 1} if request_id == 4 else sampling
            submit = harness.submit(request_id, range(1, 9 + request_id), max_tokens=6, **asked)
            prompt = Prompt(submit.prompt)
            prompts.append(weakref.ref(prompt))
            harness.channel.inbox[-1] = msgspec.structs.replace(submit, prompt=prompt)
            del prompt
        harness.step()
        harness.abort(3)
        harness.run()
        assert [prompt() for prompt in prompts] == [None] * 5
        assert list(harness.refused) == [4]
    finally:
        gc.enable()


def test_kv_tokens_count_each_shared_block_once() -> None:
    harness = Harness(blocks=64, max_batch_tokens=64)
    for request_id in range(4):
        harness.submit(request_id, [*range(1, 17), 20 + request_id], max_tokens=8, stop_token_ids=())
        harness.step()
    for _ in range(3):
        harness.step()
    kv = harness.kv
    assert kv.pool.owned < sum(len(holding.tables[0]) for holding in kv.holdings.values())
    assert 16 < kv_tokens(harness.scheduler) <= kv.pool.owned * kv.block_tokens
    private = sum(branch.computed - 16 for branch in kv.holdings)
    assert kv_tokens(harness.scheduler) == 16 + private


def test_the_counters_of_a_run_add_up() -> None:
    harness = Harness()
    for request_id in range(3):
        harness.submit(request_id, list(range(1, 14)), max_tokens=4, stop_token_ids=())
        harness.run()
    stats = harness.channel.stats
    assert stats is not None
    assert (stats.prompt_tokens_total, stats.generation_tokens_total) == (39, 12)
    assert (stats.prefix_query_tokens_total, stats.prefix_hit_tokens_total) == (39, 24)
    assert (stats.running, stats.waiting, stats.kv_blocks_owned, stats.waiting_prompt_tokens) == (0, 0, 0, 0)
    assert stats.step == len(harness.fake.plans)
    assert stats.step_seconds_total == pytest.approx(0.001 * stats.step)


def test_waiting_prompt_tokens_count_what_nobody_computed_yet() -> None:
    harness = Harness(max_requests=1, max_batch_tokens=8, chunked_prefill_tokens=8)
    harness.submit(1, [1] * 20, max_tokens=2)
    harness.submit(2, [2] * 19, max_tokens=2)
    harness.step()
    assert harness.channel.stats is not None
    assert harness.channel.stats.waiting_prompt_tokens == 12 + 19
    harness.run()


def test_an_injected_fault_raises_at_its_step_and_not_before() -> None:
    harness = Harness()
    harness.core._runner = FaultyRunner(harness.fake, parse_faults("raise@3"))
    harness.submit(1, [1, 2, 3], max_tokens=9, stop_token_ids=())
    harness.step()
    harness.step()
    with pytest.raises(InjectedFault):
        harness.step()


def test_an_injected_row_error_ends_one_request_of_many() -> None:
    """vllm #43920: a poison request took its neighbours down."""
    harness = Harness(max_requests=8)
    harness.core._runner = FaultyRunner(harness.fake, parse_faults("row-error@2"))
    for request_id in range(8):
        harness.submit(request_id, [1, 2, request_id + 1], max_tokens=6, stop_token_ids=())
    harness.run()
    failed = [i for i in range(8) if harness.heard[i, 0].finish is FinishReason.ERROR]
    assert len(failed) == 1
    for request_id in set(range(8)) - set(failed):
        harness.assert_solo(request_id)


def test_without_faults_the_runner_is_not_wrapped() -> None:
    runner = FakeRunner()
    assert with_faults(runner, parse_faults("")) is runner


@pytest.mark.parametrize("text", ["raise", "raise@x", "melt@3", "sleep@1:long", "@"])
def test_a_fault_nobody_knows_is_a_start_error(text: str) -> None:
    with pytest.raises(StartError) as error:
        parse_faults(text)
    assert error.value.reason is StartReason.CONFIG_INVALID


def test_several_faults_are_read() -> None:
    assert [(f.kind, f.step, f.seconds) for f in parse_faults("raise@5, sleep@2:1.5,")] == [
        ("raise", 5, 0.0),
        ("sleep", 2, 1.5),
    ]
