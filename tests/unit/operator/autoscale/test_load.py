"""The load of a pod and of a pool, term by term, and what silence counts as."""

from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kvik_operator.autoscale.decide import decide
from kvik_operator.autoscale.load import FRESH_SECONDS, MOST_FULL, pod_load, pool_load, predicted_ttft
from kvik_operator.autoscale.types import EngineState, LoadReading, PodSample, ScalePolicy, Term
from kvik_operator.autoscale.windows import PoolMemory

POLICY = ScalePolicy(1, 8, target=0.75, kv_full=0.8, queue_full=5, ttft_full=2.0, stabilization=300.0)
IDLE = LoadReading(
    at=100.0,
    state=EngineState.READY,
    kv_blocks_used=0,
    kv_blocks_total=1000,
    running=0,
    waiting=0,
    refused_total=0,
    waiting_prompt_tokens=0,
    prefill_tokens_per_second=1000.0,
    warm_since="2026-01-01T00:00:00Z",
)


def pod(*readings: LoadReading, expected: bool = True, uid: str = "p") -> PodSample:
    return PodSample(uid, expected, readings)


def steady(reading: LoadReading) -> PodSample:
    """The same figures at the last two readings."""
    return pod(reading, replace(reading, at=reading.at - 5))


def test_kv_is_measured_against_full_and_not_against_all_blocks() -> None:
    load = pod_load(replace(IDLE, kv_blocks_used=400), None, POLICY)
    assert load.value == pytest.approx(0.5)
    assert load.winner is Term.KV


def test_a_queue_fills_a_pod_at_any_kv_utilisation() -> None:
    """llm-d-autoscaling #662: with long prompts the queue explodes at 30 % KV."""
    load = pod_load(replace(IDLE, kv_blocks_used=300, waiting=20), None, POLICY)
    assert load.value == pytest.approx(4.0)
    assert load.winner is Term.QUEUE


def test_the_predicted_ttft_leads_by_the_prompts_that_wait() -> None:
    load = pod_load(replace(IDLE, waiting=1, waiting_prompt_tokens=8000), None, POLICY)
    assert load.value == pytest.approx(4.0)
    assert load.winner is Term.TTFT


def test_a_pod_that_only_computes_prompts_is_full_although_it_decodes_next_to_nothing() -> None:
    """llm-d-autoscaling #1213: pools of prefill never scaled, since the signal was one of decoding."""
    prompts = replace(IDLE, kv_blocks_used=100, running=1, waiting=1, waiting_prompt_tokens=3000)
    load = pool_load([steady(prompts), steady(prompts)], POLICY, now=100.0)
    assert load.up == pytest.approx(3.0)
    assert load.winner is Term.TTFT
    decision = decide(load, 2, POLICY, PoolMemory(), 0.0)
    assert (decision.desired, decision.winner) == (4, Term.TTFT)


def test_without_a_measured_rate_there_is_no_prediction_and_the_other_terms_decide() -> None:
    waiting = replace(IDLE, waiting=2, waiting_prompt_tokens=8000, prefill_tokens_per_second=None)
    assert predicted_ttft(waiting) is None
    assert predicted_ttft(replace(waiting, prefill_tokens_per_second=0.0)) is None
    assert pod_load(waiting, None, POLICY).winner is Term.QUEUE


def test_a_batch_pool_has_no_ttft_term() -> None:
    batch = replace(POLICY, ttft_full=None)
    assert Term.TTFT not in pod_load(replace(IDLE, waiting_prompt_tokens=10**9), None, batch).terms


def test_refused_requests_count_as_waiting_but_only_the_new_ones() -> None:
    before, now = replace(IDLE, refused_total=100), replace(IDLE, waiting=3, refused_total=107)
    assert pod_load(now, before, POLICY).terms[Term.QUEUE] == pytest.approx(2.0)
    assert pod_load(now, None, POLICY).terms[Term.QUEUE] == pytest.approx(0.6)


def test_a_counter_that_started_again_is_not_negative_load() -> None:
    before, now = replace(IDLE, refused_total=100), replace(IDLE, refused_total=5)
    assert pod_load(now, before, POLICY).terms[Term.QUEUE] == pytest.approx(1.0)


def test_a_peak_of_one_reading_is_not_believed_on_the_way_up_and_is_on_the_way_down() -> None:
    peak = pod(replace(IDLE, waiting=50), replace(IDLE, at=95.0, waiting=1))
    load = pool_load([peak], POLICY, now=100.0)
    assert load.up == pytest.approx(0.2)
    assert load.down == pytest.approx(10.0)


def test_one_reading_alone_scales_nothing_up() -> None:
    load = pool_load([pod(replace(IDLE, waiting=50))], POLICY, now=100.0)
    assert (load.up, load.fresh) == (0.0, 1)


def test_silence_is_the_target_on_the_way_down_and_nothing_on_the_way_up() -> None:
    old = replace(IDLE, waiting=50)
    load = pool_load([steady(IDLE), pod(old, uid="silent")], POLICY, now=100.0 + FRESH_SECONDS + 1)
    assert (load.fresh, load.silent) == (0, 2)
    assert load.down == pytest.approx(2 * POLICY.target)
    assert load.up == 0.0


def test_one_pod_that_refuses_connections_does_not_stop_the_others_counting() -> None:
    """AIBrix #617."""
    busy = replace(IDLE, waiting=10)
    load = pool_load([steady(busy), steady(busy), pod(uid="refuses")], POLICY, now=100.0)
    assert (load.fresh, load.silent) == (2, 1)
    assert load.up == pytest.approx(4.0)


def test_a_pod_that_never_was_warm_does_not_block_scaling_down() -> None:
    """dynamo #14251, #14671: a Pending pod kept the pool at its size."""
    load = pool_load([steady(IDLE), pod(expected=False, uid="pending")], POLICY, now=100.0)
    assert (load.down, load.silent) == (0.0, 0)


def test_a_pod_that_starts_or_drains_carries_no_load() -> None:
    """dynamo #12430: samples of a cold start poison the decision."""
    starting = replace(IDLE, state=EngineState.STARTING, waiting=50, warm_since=None)
    draining = replace(IDLE, state=EngineState.DRAINING, kv_blocks_used=900)
    new = pod(starting, replace(starting, at=95.0), expected=False)
    load = pool_load([new, steady(draining)], POLICY, now=100.0)
    assert (load.up, load.down, load.fresh, load.silent) == (0.0, 0.0, 0, 0)


def test_a_pod_whose_core_begins_anew_keeps_its_place_meanwhile() -> None:
    """Its share lies on the others, or is gone for the moment: no reason to take a pod away."""
    restarting = replace(IDLE, state=EngineState.STARTING, warm_since=None)
    load = pool_load([steady(IDLE), steady(restarting)], POLICY, now=100.0)
    assert (load.fresh, load.silent) == (1, 1)
    assert load.down == pytest.approx(POLICY.target)


def test_the_winner_is_the_term_that_carries_most_of_the_pools_load() -> None:
    queue, kv = replace(IDLE, waiting=10), replace(IDLE, kv_blocks_used=400)
    assert pool_load([steady(queue), steady(kv), steady(kv)], POLICY, now=100.0).winner is Term.QUEUE


counts = st.integers(0, 10**9)
readings = st.builds(
    LoadReading,
    at=st.floats(0, 200),
    state=st.sampled_from(EngineState),
    kv_blocks_used=counts,
    kv_blocks_total=counts,
    running=counts,
    waiting=counts,
    refused_total=counts,
    waiting_prompt_tokens=counts,
    prefill_tokens_per_second=st.none() | st.floats(0, 1e9),
    warm_since=st.none() | st.just("2026-01-01T00:00:00Z"),
)


ABSURD = replace(IDLE, at=195.0, waiting=2**53, waiting_prompt_tokens=2**53, prefill_tokens_per_second=5e-324)


@example([PodSample("p", True, (ABSURD, ABSURD))])
@given(
    st.lists(st.builds(PodSample, st.just("p"), st.booleans(), st.lists(readings, max_size=3).map(tuple)), max_size=8)
)
def test_whatever_engines_say_the_load_is_finite_and_up_is_never_above_down(pods: list[PodSample]) -> None:
    load = pool_load(pods, POLICY, now=200.0)
    assert 0.0 <= load.up <= load.down <= MOST_FULL * len(pods)
    assert load.fresh + load.silent <= len(pods)
