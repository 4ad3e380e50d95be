"""Preempted KV that goes to the host and comes back, and evicted prefixes that do: the core on a fake model."""

from pathlib import Path

import pytest

from kvik_engine.request import Life, Request
from kvik_engine.scheduler.swap_or_recompute import PreemptionMode
from tests.support.engine_harness import API, Harness
from tests.support.held_disk import Damage, Fault, HeldDisk

LONG = {"max_tokens": 24, "min_tokens": 24}
OVERLAPS = pytest.mark.parametrize("overlap", [0, 1])


def prompt(number: int, length: int = 12) -> list[int]:
    return [(number * 17 + i * 5) % 62 + 1 for i in range(length)]


def crowded(**settings: object) -> Harness:
    """Two requests of 12 + 24 tokens in a pool of 13 blocks of 4: the second one gives way."""
    defaults: dict[str, object] = {"blocks": 13, "swap_slots": 40, "prefix_cache": False}
    harness = Harness(**{**defaults, **settings})  # type: ignore[arg-type]
    for number in range(2):
        harness.submit(number, prompt(number), **LONG)
        harness.step()
    return harness


def computed_tokens(harness: Harness) -> int:
    return sum(plan.tokens for plan in harness.fake.plans)


def moved(harness: Harness) -> tuple[int, int]:
    """Blocks out and in, as planned."""
    plans = harness.fake.plans
    return sum(len(plan.swap_outs) for plan in plans), sum(len(plan.swap_ins) for plan in plans)


def step_until(harness: Harness, life: Life, request_id: int) -> Request:
    """Steps until the request's first branch is in this state."""
    for _ in range(200):
        harness.step()
        request = harness.core._requests.get((API, request_id))
        if request is not None and request.branches[0].life is life and request.preemptions:
            return request
    raise AssertionError(f"never {life}")


@OVERLAPS
@pytest.mark.parametrize("mode", [PreemptionMode.SWAP, PreemptionMode.RECOMPUTE])
def test_both_ways_give_the_tokens_of_an_undisturbed_run(mode: PreemptionMode, overlap: int) -> None:
    harness = crowded(preemption_mode=mode, overlap=overlap)
    harness.run()

    for number in range(2):
        harness.assert_solo(number)
    counters = harness.scheduler.counters
    assert counters.preemptions > 0
    assert counters.swaps == (counters.preemptions if mode is PreemptionMode.SWAP else 0)


@OVERLAPS
def test_a_swapped_request_computes_no_token_twice(overlap: int) -> None:
    harness = crowded(overlap=overlap)
    harness.run()

    assert computed_tokens(harness) == 2 * (12 + 24 - 1)
    out, back = moved(harness)
    assert out == back > 0


def test_a_recomputed_request_computes_its_tokens_again() -> None:
    harness = crowded(preemption_mode=PreemptionMode.RECOMPUTE)
    harness.run()

    assert computed_tokens(harness) > 2 * (12 + 24 - 1)
    assert moved(harness) == (0, 0)


def test_short_requests_are_recomputed_and_long_ones_swapped() -> None:
    for threshold, swapped in ((12, True), (1000, False)):
        harness = crowded(preemption_mode=PreemptionMode.AUTO, swap_threshold=threshold)
        harness.run()
        assert (harness.scheduler.counters.swaps > 0) == swapped


def test_without_room_in_the_swap_space_a_request_is_recomputed() -> None:
    harness = crowded(swap_slots=2)
    harness.run()

    for number in range(2):
        harness.assert_solo(number)
    assert harness.scheduler.counters.preemptions > harness.scheduler.counters.swaps == 0


@OVERLAPS
def test_blocks_that_choices_share_are_swapped_once(overlap: int) -> None:
    """vllm #5578: n >= 2 filled the swap space with copies of one prompt."""
    harness = Harness(blocks=24, swap_slots=40, prefix_cache=False, overlap=overlap)
    harness.submit(0, prompt(0, 4), max_tokens=60, min_tokens=60)
    harness.step()
    harness.submit(1, prompt(1, 24), n=3, max_tokens=20, min_tokens=20, temperature=1.0)
    request = step_until(harness, Life.WAITING, 1)
    assert harness.host is not None
    tables = [harness.host.holdings[branch].tables[0] for branch in request.live]

    whole_prompt = 24 // 4
    assert len({slot for table in tables for slot in table[:whole_prompt]}) == whole_prompt
    assert moved(harness)[0] == len({slot for table in tables for slot in table})
    harness.run()
    harness.assert_solo(0)
    harness.assert_solo(1)
    assert moved(harness)[1] == moved(harness)[0]


@OVERLAPS
def test_blocks_behind_a_window_are_not_swapped(overlap: int) -> None:
    harness = Harness(
        blocks=30, windows=(None, 8), max_batch_tokens=8, swap_slots=60, prefix_cache=False, overlap=overlap
    )
    for number in range(2):
        harness.submit(number, prompt(number, 20), max_tokens=30, min_tokens=30)
        harness.step()
    request = step_until(harness, Life.WAITING, 1)
    assert harness.host is not None
    full, window = harness.host.holdings[request.branches[0]].tables

    assert None not in full
    assert 2 <= sum(slot is not None for slot in window) <= 3
    assert moved(harness)[0] == sum(slot is not None for slot in (*full, *window))
    harness.run()
    for number in range(2):
        harness.assert_solo(number)


@OVERLAPS
def test_a_request_that_leaves_while_it_is_loading_loses_nothing(overlap: int) -> None:
    harness = crowded(overlap=overlap)
    step_until(harness, Life.LOADING, 1)
    harness.abort(1)
    harness.run()

    harness.assert_solo(0)
    assert harness.host is not None
    assert harness.host.pool.owned == 0


@OVERLAPS
def test_a_request_that_leaves_while_it_is_swapped_out_gives_its_slots_back(overlap: int) -> None:
    harness = crowded(overlap=overlap)
    step_until(harness, Life.WAITING, 1)
    harness.abort(1)
    harness.run()

    harness.assert_solo(0)
    assert harness.host is not None
    assert harness.host.pool.free == harness.host.pool.total


@OVERLAPS
def test_a_request_preempted_while_it_is_loading_comes_back_from_its_slots(overlap: int) -> None:
    harness = crowded(overlap=overlap)
    step_until(harness, Life.LOADING, 1)
    harness.submit(2, prompt(2, 40), slo_class=0, max_tokens=2, min_tokens=2)
    harness.run()

    for number in range(3):
        harness.assert_solo(number)
    assert computed_tokens(harness) == 2 * (12 + 24 - 1) + 40 + 1


def flooded(**settings: object) -> Harness:
    """A prompt of 24 tokens was computed, and then pushed out of the device's pool by others."""
    defaults: dict[str, object] = {"blocks": 12, "swap_slots": 40}
    harness = Harness(**{**defaults, **settings})  # type: ignore[arg-type]
    for number in range(4):
        harness.submit(number, prompt(number, 24), max_tokens=1)
        harness.run()
    assert harness.host is not None
    return harness


@OVERLAPS
def test_an_evicted_prefix_comes_back_from_the_host(overlap: int) -> None:
    harness = flooded(overlap=overlap)
    before = computed_tokens(harness)
    harness.submit(9, [*prompt(0, 24), 7], max_tokens=8, min_tokens=8)
    harness.run()

    harness.assert_solo(9)
    assert harness.heard[9, 0].cached_tokens == 24
    assert computed_tokens(harness) - before == 1 + 7
    assert harness.scheduler.counters.prefix_hit_tokens == 24


def test_a_prefix_is_copied_to_the_host_once() -> None:
    harness = flooded()
    for request_id, number in enumerate((0, 1, 2, 3, 0, 1), start=10):
        harness.submit(request_id, prompt(number, 24), max_tokens=1)
        harness.run()
    out, _ = moved(harness)
    assert out == 4 * 6


def test_what_the_device_still_has_is_not_copied_back() -> None:
    harness = flooded()
    _, before = moved(harness)
    harness.submit(9, [*prompt(3, 24), 7], max_tokens=1)
    harness.run()

    assert moved(harness)[1] == before
    assert harness.heard[9, 0].cached_tokens == 24


def test_the_longest_unused_prefix_leaves_the_host_first() -> None:
    harness = flooded(swap_slots=6)
    harness.submit(9, [*prompt(0, 24), 7], max_tokens=1)
    harness.run()

    assert harness.heard[9, 0].cached_tokens == 0
    harness.assert_solo(9)


def test_tenants_do_not_share_prefixes_on_the_host() -> None:
    harness = flooded()
    harness.submit(9, [*prompt(0, 24), 7], salt=b"another tenant", max_tokens=1)
    harness.run()

    assert harness.heard[9, 0].cached_tokens == 0


def test_without_a_prefix_cache_the_host_keeps_no_prefixes() -> None:
    harness = flooded(prefix_cache=False)
    assert moved(harness) == (0, 0)


@OVERLAPS
def test_tokens_behind_a_stop_string_are_not_found_on_the_host(overlap: int) -> None:
    """A preempted request leaves its blocks to the cache, they are evicted, and only then its stop string is found."""
    harness = crowded(overlap=overlap, prefix_cache=True, preemption_mode=PreemptionMode.RECOMPUTE)
    request = step_until(harness, Life.WAITING, 1)
    for _ in range(12):
        harness.step()
    answer = harness.output(1)
    tokens = [*request.prompt, *answer]
    assert len(answer) > 4
    harness.abort(1, accepted_tokens=1)
    harness.run()
    harness.submit(9, [*tokens, 7], max_tokens=1)
    harness.run()

    assert harness.heard[9, 0].cached_tokens <= 12 + 1
    harness.assert_solo(9)


def test_swapped_kv_pushes_cached_prefixes_out_and_never_the_other_way_round() -> None:
    harness = flooded(swap_slots=10)
    for number in range(20, 23):
        harness.submit(number, prompt(number, 8), max_tokens=24, min_tokens=24)
    harness.run()

    for number in range(20, 23):
        harness.assert_solo(number)
    assert harness.scheduler.counters.swaps > 0


def spilled(disk_cache: Path, **settings: object) -> Harness:
    """As flooded, with a swap space of one prompt only: the others lie on the disk."""
    defaults: dict[str, object] = {"blocks": 12, "swap_slots": 12, "disk_cache": disk_cache}
    harness = Harness(**{**defaults, **settings})  # type: ignore[arg-type]
    for number in range(6):
        harness.submit(number, prompt(number, 24), max_tokens=1)
        harness.run()
        disk_of(harness).go_on(100)
    return harness


def disk_of(harness: Harness) -> HeldDisk:
    assert harness.disk is not None
    return harness.disk


def run_with_disk(harness: Harness) -> None:
    """To the end, with a disk that needs a step for each block."""
    for _ in range(500):
        if not harness.core.busy and not harness.channel.inbox:
            break
        harness.step()
        disk_of(harness).go_on(1)
    harness.run()


@OVERLAPS
def test_a_prefix_from_the_disk_gives_the_cold_answer(overlap: int, tmp_path: Path) -> None:
    harness = spilled(tmp_path, overlap=overlap)
    before = computed_tokens(harness)
    harness.submit(9, [*prompt(0, 24), 7], max_tokens=8, min_tokens=8)
    run_with_disk(harness)

    harness.assert_solo(9)
    assert harness.heard[9, 0].cached_tokens == 24
    assert computed_tokens(harness) - before == 1 + 7
    assert disk_of(harness).tier.use.read == 6


@OVERLAPS
def test_others_go_on_while_a_prefix_is_read_from_the_disk(overlap: int, tmp_path: Path) -> None:
    harness = spilled(tmp_path, overlap=overlap, blocks=24)
    harness.submit(8, [1, 2, 3], max_tokens=12, min_tokens=12)
    harness.submit(9, [*prompt(0, 24), 7], max_tokens=8, min_tokens=8)
    for _ in range(40):
        harness.step()
    assert len(disk_of(harness).waiting) > 0
    assert len(harness.output(8)) == 12
    assert (9, 0) not in harness.heard
    run_with_disk(harness)

    harness.assert_solo(8)
    harness.assert_solo(9)


@OVERLAPS
@pytest.mark.parametrize("why", [*Damage, Fault.GONE])
def test_what_the_disk_cannot_read_is_computed(why: Damage | Fault, overlap: int, tmp_path: Path) -> None:
    harness = spilled(tmp_path, overlap=overlap)
    if isinstance(why, Damage):
        disk_of(harness).damage(why, every=1)
    else:
        disk_of(harness).files.fault = why
    harness.submit(9, [*prompt(0, 24), 7], max_tokens=8, min_tokens=8)
    run_with_disk(harness)

    harness.assert_solo(9)
    assert harness.heard[9, 0].cached_tokens == 0


@OVERLAPS
@pytest.mark.parametrize("steps", range(1, 9))
def test_a_request_that_leaves_while_the_disk_is_read_loses_nothing(steps: int, overlap: int, tmp_path: Path) -> None:
    harness = spilled(tmp_path, overlap=overlap)
    harness.submit(9, [*prompt(0, 24), 7], max_tokens=8, min_tokens=8)
    for _ in range(steps):
        harness.step()
        disk_of(harness).go_on(1)
    harness.abort(9)
    run_with_disk(harness)
    disk_of(harness).go_on(100)
    harness.submit(10, [*prompt(0, 24), 7], max_tokens=8, min_tokens=8)
    run_with_disk(harness)

    harness.assert_solo(10)


def test_two_requests_wait_for_one_reading_of_a_prefix(tmp_path: Path) -> None:
    harness = spilled(tmp_path, blocks=20, swap_slots=6)
    for request_id in (9, 10):
        harness.submit(request_id, [*prompt(0, 24), request_id], max_tokens=8, min_tokens=8)
    run_with_disk(harness)

    harness.assert_solo(9)
    harness.assert_solo(10)
    assert disk_of(harness).tier.use.read == 6
