"""Scaling decisions, one by one and over whole traces."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from kvik_operator.autoscale.decide import decide
from kvik_operator.autoscale.simulate import Gauges, Moment, simulate
from kvik_operator.autoscale.types import PoolLoad, ScalePolicy, Term
from kvik_operator.autoscale.windows import PoolMemory

POLICY = ScalePolicy(1, 8, target=0.75, kv_full=0.8, queue_full=5, ttft_full=2.0, stabilization=300.0)


def load(up: float, down: float | None = None, *, fresh: int = 3, silent: int = 0) -> PoolLoad:
    return PoolLoad(up, up if down is None else down, fresh, silent, Term.KV)


def replicas(moments: Sequence[Moment]) -> list[int]:
    return [moment.replicas for moment in moments]


def changes(moments: Sequence[Moment]) -> list[int]:
    """The numbers of replicas in their order, without repeats."""
    seen = replicas(moments)
    return [seen[0], *(now for before, now in itertools.pairwise(seen) if now != before)]


# --- one decision ---


def test_the_formula_is_said_in_words() -> None:
    """llm-d-autoscaling #918, #1494: nobody could say why a pool had scaled."""
    decision = decide(load(1.8), 3, POLICY, PoolMemory(), 0.0)
    assert decision.desired == 3
    assert decision.formula == "60 % of full x 3 pods / 75 % -> 3"


def test_up_comes_at_once() -> None:
    decision = decide(load(3.0), 3, POLICY, PoolMemory(), 0.0)
    assert (decision.desired, decision.winner) == (4, Term.KV)
    assert decision.formula == "100 % of full x 3 pods / 75 % -> 4"


def test_up_is_at_most_doubling_and_says_so() -> None:
    decision = decide(load(30.0, fresh=1), 1, replace(POLICY, max_replicas=100), PoolMemory(), 0.0)
    assert decision.desired == 2
    assert decision.formula == "3000 % of full x 1 pod / 75 % -> 40, at most doubling in 15 s: 2"


def test_a_full_pool_at_its_maximum_holds_and_names_the_bound() -> None:
    decision = decide(load(30.0), 8, POLICY, PoolMemory(), 0.0)
    assert (decision.desired, decision.winner) == (8, Term.BOUNDS)
    assert decision.formula.endswith("-> 40, maxReplicas 8: 8")


def test_nothing_goes_down_before_the_window_is_whole() -> None:
    decision = decide(load(0.0), 3, POLICY, PoolMemory(), 0.0)
    assert (decision.desired, decision.window_whole) == (3, False)
    assert decision.formula == "0 % of full x 3 pods / 75 % -> 1, the first window is not over: 3"


def test_down_comes_step_by_step_and_says_so() -> None:
    memory = PoolMemory()
    for now in range(0, 300, 5):
        assert decide(load(0.9), 8, POLICY, memory, float(now)).desired == 8
    first = decide(load(0.9), 8, POLICY, memory, 300.0)
    assert (first.desired, first.winner) == (7, Term.BOUNDS)
    assert first.formula == "30 % of full x 3 pods / 75 % -> 2, at most 1 pod fewer in 100 s: 7"
    assert decide(load(0.9), 7, POLICY, memory, 305.0).desired == 7


def test_a_pool_that_would_be_near_its_target_on_fewer_pods_keeps_them_and_says_so() -> None:
    """On fewer pods the same requests are more load than in proportion."""
    memory = PoolMemory()
    for now in range(0, 300, 5):
        decide(load(1.6), 4, POLICY, memory, float(now))
    decision = decide(load(1.6, fresh=4), 4, POLICY, memory, 300.0)
    assert decision.desired == 4
    assert decision.formula == "40 % of full x 4 pods / 75 % -> 3, fewer only up to 50 %: 4"
    memory = PoolMemory()
    for now in range(0, 300, 5):
        decide(load(1.5), 4, POLICY, memory, float(now))
    assert decide(load(1.5), 4, POLICY, memory, 300.0).desired == 3


def test_a_pool_that_is_asked_for_less_than_its_step_goes_to_its_maximum_at_once() -> None:
    """`maxReplicas` is a person's word; steps are for what was only projected."""
    lowered = replace(POLICY, max_replicas=3)
    assert decide(load(0.9), 8, lowered, PoolMemory(), 0.0).desired == 3


def test_without_any_data_the_pool_holds() -> None:
    """keda #3065, #4249, #965, KubeAI #383: missing is not zero."""
    decision = decide(load(0.0, 2.25, fresh=0, silent=3), 3, POLICY, PoolMemory(), 0.0)
    assert decision.desired is None
    assert decision.formula == "no load data: 3 of its pods say nothing; holds at 3"
    one = decide(load(0.0, 0.75, fresh=0, silent=1), 1, POLICY, PoolMemory(), 0.0)
    assert one.formula == "no load data: 1 of its pods says nothing; holds at 1"


def test_a_pool_outside_its_bounds_is_brought_inside_even_without_data() -> None:
    nothing = load(0.0, fresh=0)
    low = decide(nothing, 1, replace(POLICY, min_replicas=2), PoolMemory(), 0.0)
    high = decide(nothing, 20, POLICY, PoolMemory(), 0.0)
    assert (low.desired, low.winner) == (2, Term.BOUNDS)
    assert (high.desired, high.winner) == (8, Term.BOUNDS)


def test_pods_that_still_start_count_as_capacity() -> None:
    """AIBrix PR #2671. Two pods are overloaded and two more were asked for already: no more are."""
    assert decide(load(3.0, fresh=2), 4, POLICY, PoolMemory(), 0.0).desired == 4


def test_a_silent_pod_is_said_in_the_formula() -> None:
    decision = decide(load(0.3, 1.05, fresh=2, silent=1), 3, POLICY, PoolMemory(), 0.0)
    assert decision.formula.startswith("15 % of full x 2 pods + 1 silent at 75 % / 75 % -> 2")


# --- whole traces ---


def test_long_prompts_at_low_kv_scale_up_within_one_period() -> None:
    """llm-d-autoscaling #662: the queue grows without bound while KV stays at 30 %."""

    def trace(now: float, warm: int) -> list[Gauges]:
        waiting = int(now) if now >= 60 else 0
        return [Gauges(kv=0.3, waiting=waiting // warm, waiting_prompt_tokens=4000 * waiting // warm)] * warm

    moments = simulate(trace, POLICY, seconds=120, startup=30.0)
    first_up = next(moment.at for moment in moments if moment.replicas > 1)
    assert first_up <= 75
    assert replicas(moments)[-1] == 8


def test_zero_traffic_goes_down_from_the_window_on_and_reaches_the_minimum() -> None:
    """dynamo #6985, ray #64725: traffic stops, NaN, the pool stays at its peak."""

    def trace(now: float, warm: int) -> list[Gauges]:
        return [Gauges(kv=0.7 if now < 600 else 0.0, prefill_tokens_per_second=None)] * warm

    moments = simulate(trace, POLICY, seconds=1700, replicas=8)
    first = next(moment.at for moment in moments if moment.replicas < 8)
    assert first <= 600 + POLICY.stabilization + 10
    assert next(moment.at for moment in moments if moment.replicas == 1) <= first + 6 * (POLICY.stabilization / 3 + 5)
    assert changes(moments) == [8, 7, 6, 5, 4, 3, 2, 1]


def test_an_outage_of_the_scrapes_holds_and_then_resumes() -> None:
    """keda #3065: an outage was read as zero and scaled down."""

    def trace(now: float, warm: int) -> list[Gauges | None]:
        return [None if 400 <= now < 800 else Gauges(kv=0.0 if now >= 400 else 2.2 / warm)] * warm

    moments = simulate(trace, POLICY, seconds=1300, replicas=4)
    during = [moment for moment in moments if 420 <= moment.at < 800]
    assert {moment.replicas for moment in during} == {4}
    assert all(moment.decision.desired is None for moment in during)
    went_down = next(moment.at for moment in moments if moment.replicas < 4)
    assert 800 + POLICY.stabilization <= went_down <= 800 + POLICY.stabilization + 10


def test_a_fresh_operator_sees_a_whole_window_before_it_scales_down() -> None:
    moments = simulate(lambda _, warm: [Gauges(kv=0.0)] * warm, POLICY, seconds=400, replicas=5)
    assert next(moment.at for moment in moments if moment.replicas < 5) == POLICY.stabilization


def test_growth_is_at_most_doubling_per_fifteen_seconds() -> None:
    def trace(_: float, warm: int) -> list[Gauges]:
        return [Gauges(kv=1.0, waiting=1000)] * warm

    moments = simulate(trace, replace(POLICY, max_replicas=64), seconds=120)
    by_time = {moment.at: moment.replicas for moment in moments}
    assert all(by_time[at] <= 2 * by_time[max(0.0, at - 15)] for at in by_time)
    assert by_time[120] == 64


def test_a_silent_pod_does_not_stop_the_pool_from_scaling_up() -> None:
    """AIBrix #617."""

    def trace(_: float, warm: int) -> list[Gauges | None]:
        return [None, *[Gauges(kv=1.0, waiting=20)] * (warm - 1)]

    assert replicas(simulate(trace, POLICY, seconds=60, replicas=2))[-1] == 8


def test_a_wave_shorter_than_the_window_does_not_pump() -> None:
    """dynamo PR #9294: 2 <-> 1 flapping."""

    def trace(now: float, warm: int) -> list[Gauges]:
        total = 1.0 + 0.6 * math.sin(now / 60 * 2 * math.pi)
        return [Gauges(kv=min(1.0, total / warm))] * warm

    moments = simulate(trace, POLICY, seconds=3600, replicas=2)
    assert changes(moments) == [2, 3]


def test_a_load_at_the_very_edge_does_not_flap() -> None:
    """Measured on six pods it needs five, measured on five it needs six, because blocks are counted whole."""

    def trace(_: float, warm: int) -> list[Gauges]:
        return [Gauges(kv=(2.0 if warm >= 6 else 2.001) / warm)] * warm

    moments = simulate(trace, replace(POLICY, target=0.5), seconds=3600, replicas=6)
    assert changes(moments) == [6]


@settings(max_examples=40, deadline=None)
@given(
    total=st.floats(0.0, 6.0),
    start=st.integers(1, 8),
    target=st.floats(0.5, 0.95),
    startup=st.sampled_from([0.0, 30.0, 300.0]),
)
def test_constant_load_never_oscillates(total: float, start: int, target: float, startup: float) -> None:
    """It moves towards one number of replicas, in one direction, and stays there."""

    def trace(_: float, warm: int) -> list[Gauges]:
        return [Gauges(kv=min(1.0, total / warm))] * warm

    moments = simulate(trace, replace(POLICY, target=target), seconds=3000, replicas=start, startup=startup)
    path = changes(moments)
    assert path == sorted(path) or path == sorted(path, reverse=True)
    late = [moment.replicas for moment in moments if moment.at >= 2000]
    assert len(set(late)) == 1


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_whatever_comes_the_bounds_hold_and_silence_decides_nothing(data: st.DataObject) -> None:
    def trace(_: float, warm: int) -> list[Gauges | None]:
        gauges = st.builds(Gauges, kv=st.floats(0, 1), waiting=st.integers(0, 100), refused_total=st.integers(0, 100))
        return data.draw(st.lists(st.none() | gauges, min_size=warm, max_size=warm))

    for moment in simulate(trace, POLICY, seconds=60, replicas=2):
        assert 1 <= moment.replicas <= 8
        if moment.decision.desired is not None:
            assert isinstance(moment.decision.desired, int)
        assert len(moment.decision.formula) <= 256
