import math

import pytest

from kvik_engine.scheduler.swap_or_recompute import PreemptionMode, SwapCosts, SwapOrRecompute

PCIE_4 = 25e9
LLAMA_3_8B = 2 * 32 * 8 * 128 * 2
"""Bytes a token: keys and values of 32 layers with 8 KV heads of 128 elements in bf16."""


def swap_seconds(costs: SwapCosts, tokens: int) -> float:
    """Out and back again."""
    return 2 * (costs.step_seconds + tokens * costs.bytes_per_token / costs.copy_bytes_per_second)


def recompute_seconds(costs: SwapCosts, tokens: int) -> float:
    return tokens / costs.prefill_tokens_per_second


def choice(
    mode: PreemptionMode = PreemptionMode.AUTO, *, threshold: int | None = None, bandwidth: float = 1e9
) -> SwapOrRecompute:
    return SwapOrRecompute(mode=mode, threshold_tokens=threshold, bytes_per_token=1000, copy_bytes_per_second=bandwidth)


def test_on_paper_an_8b_model_on_pcie_4_swaps_from_about_1000_tokens() -> None:
    """Prefill at 20,000 tokens/s, steps of 20 ms."""
    costs = SwapCosts(
        bytes_per_token=LLAMA_3_8B,
        copy_bytes_per_second=PCIE_4,
        prefill_tokens_per_second=20_000,
        step_seconds=0.02,
    )
    assert costs.bytes_per_token == 131_072
    assert 900 < costs.crossing < 1100
    assert swap_seconds(costs, 4000) < recompute_seconds(costs, 4000)
    assert swap_seconds(costs, 200) > recompute_seconds(costs, 200)


@pytest.mark.parametrize("step_seconds", [0.0, 0.001, 0.3])
@pytest.mark.parametrize("rate", [50.0, 5_000.0, 100_000.0])
def test_both_ways_take_as_long_at_the_crossing(step_seconds: float, rate: float) -> None:
    costs = SwapCosts(
        bytes_per_token=50_000, copy_bytes_per_second=2e10, prefill_tokens_per_second=rate, step_seconds=step_seconds
    )
    assert costs.crossing / rate == pytest.approx(2 * step_seconds + costs.crossing * 50_000 / 1e10)
    below, above = int(costs.crossing * 0.9), int(costs.crossing * 1.1) + 1
    assert swap_seconds(costs, below) >= recompute_seconds(costs, below)
    assert swap_seconds(costs, above) < recompute_seconds(costs, above)


def test_a_bus_slower_than_computing_is_never_worth_it() -> None:
    costs = SwapCosts(
        bytes_per_token=1 << 20, copy_bytes_per_second=1e9, prefill_tokens_per_second=10_000, step_seconds=0.01
    )
    assert costs.crossing == math.inf


def test_auto_measures_prefill_and_plain_steps() -> None:
    auto = choice()
    assert auto.costs is None
    assert not auto.prefers_swap(1 << 30)
    for _ in range(100):
        auto.observe(0.1, 100, None)
        auto.observe(0.02, 0, None)
    assert auto.costs is not None
    assert auto.costs.prefill_tokens_per_second == pytest.approx(1000)
    assert auto.costs.step_seconds == pytest.approx(0.02)
    assert auto.threshold == pytest.approx(0.04 / (1e-3 - 2e-6))
    assert not auto.prefers_swap(40)
    assert auto.prefers_swap(41)


def test_one_step_with_a_single_prompt_token_hardly_changes_the_measured_rate() -> None:
    auto = choice()
    for _ in range(20):
        auto.observe(0.1, 100, None)
    before = auto.threshold
    auto.observe(0.02, 1, None)
    assert auto.threshold == pytest.approx(before, rel=0.05)


def test_auto_follows_a_machine_that_becomes_slower() -> None:
    auto = choice()
    for _ in range(100):
        auto.observe(0.1, 1000, None)
    for _ in range(200):
        auto.observe(1.0, 1000, None)
    assert auto.costs is not None
    assert auto.costs.prefill_tokens_per_second == pytest.approx(1000, rel=0.01)


def test_a_number_overrides_what_is_measured() -> None:
    auto = choice(threshold=300)
    for _ in range(10):
        auto.observe(0.1, 100, None)
    assert [auto.prefers_swap(tokens) for tokens in (16, 299, 300, 5000)] == [False, False, True, True]


@pytest.mark.parametrize(("mode", "want"), [(PreemptionMode.SWAP, True), (PreemptionMode.RECOMPUTE, False)])
def test_a_mode_overrides_the_threshold(mode: PreemptionMode, want: bool) -> None:
    forced = choice(mode, threshold=300)
    assert [forced.prefers_swap(tokens) for tokens in (1, 300, 1 << 20)] == [want] * 3


def test_short_prompts_between_do_not_move_the_crossing_once_full_steps_were_measured() -> None:
    """6 tokens in a step of 10 ms are no sign that a long request takes minutes to compute again."""
    auto = choice()
    for _ in range(50):
        auto.observe(0.1, 1000, 10_000.0)
    before = auto.threshold
    for _ in range(50):
        auto.observe(0.01, 6, 10_000.0)
    assert auto.threshold == before
