"""KV groups with a window: what is given back, what a hit needs, what is counted."""

from __future__ import annotations

import pytest

from kvik_engine.kv.block import SCRATCH
from kvik_engine.kv.check import check_books, check_idle
from kvik_engine.kv.manager import KVManager
from kvik_engine.kv.prefix_hash import BlockHashCache
from kvik_engine.kv.radix import RadixCache
from kvik_engine.kv.windows import first_needed, most_at_once
from kvik_engine.request import Branch
from kvik_engine.scheduler import admission
from kvik_engine.step import GroupKind, KVGroup
from tests.support import kv_driver
from tests.support.engine_harness import Harness
from tests.support.fake_runner import VOCAB
from tests.support.kv_driver import make_branch

BLOCK, WINDOW = 4, 6
FULL_GROUP = KVGroup(GroupKind.FULL, (0,), BLOCK, 64)
WINDOW_GROUP = KVGroup(GroupKind.WINDOW, (1,), BLOCK, 64, window=WINDOW)


def make_kv(blocks: int = 64, groups: tuple[KVGroup, ...] = (FULL_GROUP, WINDOW_GROUP)) -> KVManager:
    return KVManager(groups, blocks, BlockHashCache(groups), step_tokens=8)


def compute(kv: KVManager, branch: Branch, upto: int, step: int) -> None:
    kv_driver.compute(kv, branch, upto, step)
    check_books(kv)


def prompt(length: int) -> list[int]:
    return [i % (VOCAB - 1) + 1 for i in range(length)]


def test_a_group_has_a_window_only_if_its_kind_says_so() -> None:
    with pytest.raises(ValueError, match="window None"):
        KVGroup(GroupKind.WINDOW, (0,), BLOCK, 64)
    with pytest.raises(ValueError, match="window 8"):
        KVGroup(GroupKind.LATENT, (0,), BLOCK, 64, window=8)


def test_the_first_needed_block_still_has_a_token_of_the_window() -> None:
    assert [first_needed(WINDOW_GROUP, tokens) for tokens in (0, 6, 9, 10, 13, 14)] == [0, 0, 0, 1, 1, 2]
    assert first_needed(FULL_GROUP, 1000) == 0


def test_a_window_group_needs_its_window_and_a_step_however_long_the_branch() -> None:
    assert most_at_once(WINDOW_GROUP, [1000], shared=0, step_tokens=8) == 2 + 2 + 2
    assert most_at_once(WINDOW_GROUP, [5], shared=0, step_tokens=8) == 2
    assert most_at_once(FULL_GROUP, [1000], shared=0, step_tokens=8) == 250
    assert most_at_once(FULL_GROUP, [10, 10], shared=9, step_tokens=8) == 2 + 2


def test_blocks_wholly_behind_the_window_are_given_back_as_the_branch_moves_on() -> None:
    kv = make_kv()
    branch = make_branch(prompt(40))
    for step, upto in enumerate((8, 16, 24, 32), start=1):
        compute(kv, branch, upto, step)
    full, window = kv.tables(branch)
    assert len(full) == len(window) == 8
    assert [block == SCRATCH.id for block in window] == [True] * 6 + [False] * 2
    assert 0 not in full
    assert kv.held(branch) == 8 + 2
    assert kv.pool.cached == 6
    kv.release(branch)
    check_idle(kv)


def test_a_hit_needs_a_full_groups_blocks_and_those_within_the_window_of_its_end() -> None:
    kv = make_kv()
    branch = make_branch(prompt(41))
    compute(kv, branch, 40, 1)
    behind = [block.id for block in kv.pool.cached_blocks()]
    kv.release(branch)
    hit = kv.find(make_branch(prompt(41)))
    assert hit.tokens == 40
    assert [[block is SCRATCH for block in table] for table in hit.blocks] == [[False] * 10, [True] * 8 + [False] * 2]
    for block in kv.pool.cached_blocks():
        if block.id in behind[:-1]:
            kv.pool.forget(block)
    assert kv.find(make_branch(prompt(41))).tokens == 40
    assert kv.find(make_branch([*prompt(36), 60, 61])).tokens == 36
    assert kv.find(make_branch([*prompt(20), 60, 61])).tokens == 0
    check_books(kv)


def test_a_hit_goes_back_to_where_the_window_is_whole() -> None:
    kv = make_kv()
    branch = make_branch(prompt(41))
    compute(kv, branch, 40, 1)
    kv.release(branch)
    last_window_block = kv.find(make_branch(prompt(41))).blocks[1][9]
    kv.pool.forget(last_window_block)
    hit = kv.find(make_branch(prompt(41)))
    assert hit.tokens == 36
    assert kv.find(make_branch(prompt(38))).tokens == 36


def test_a_branch_that_has_moved_on_cannot_be_forked_where_it_was() -> None:
    kv = make_kv()
    branch = make_branch(prompt(40), n=2)
    compute(kv, branch, 8, 1)
    assert kv.can_fork(branch, 8)
    compute(kv, branch, 24, 2)
    assert not kv.can_fork(branch, 8)
    assert kv.can_fork(branch, 24)
    assert kv.always_shared(40) == 0
    assert make_kv(groups=(FULL_GROUP,)).always_shared(40) == 40


def test_a_request_is_admitted_by_its_windows_and_not_by_its_full_length() -> None:
    request = make_branch(prompt(400)).request
    only_window = make_kv(8, groups=(WINDOW_GROUP,))
    assert admission.can_ever_fit(request, only_window, rows=1)
    assert not admission.can_ever_fit(request, make_kv(100), rows=1)
    assert admission.can_ever_fit(request, make_kv(131), rows=1)


@pytest.mark.parametrize("overlap", [0, 1])
@pytest.mark.parametrize("windows", [(6,), (None, 6), (4, None, 9)])
def test_a_long_request_runs_in_a_pool_that_holds_only_its_windows(
    overlap: int, windows: tuple[int | None, ...]
) -> None:
    full = sum(window is None for window in windows) * 50
    harness = Harness(
        blocks=full + 7 * (len(windows) - full // 50), windows=windows, overlap=overlap, max_batch_tokens=8
    )
    harness.submit(1, prompt(180), max_tokens=20, stop_token_ids=())
    harness.run()
    harness.assert_solo(1)
    harness.submit(2, prompt(180), max_tokens=20, stop_token_ids=())
    harness.run()
    harness.assert_solo(2)


@pytest.mark.parametrize("overlap", [0, 1])
def test_choices_that_were_preempted_behind_a_window_go_on_right(overlap: int) -> None:
    harness = Harness(blocks=60, windows=(None, 5), overlap=overlap, max_batch_tokens=8, max_requests=3)
    harness.submit(1, prompt(32), slo_class=2, n=3, max_tokens=12, temperature=1.0, stop_token_ids=())
    for _ in range(12):
        harness.step()
    harness.submit(2, prompt(30)[::-1], slo_class=0, max_tokens=3, stop_token_ids=())
    harness.run()
    assert harness.scheduler.counters.preemptions == 1
    harness.assert_solo(1)
    harness.assert_solo(2)


@pytest.mark.parametrize("index", [RadixCache, BlockHashCache])
def test_a_prefix_that_lost_its_window_blocks_is_found_again_once_recomputed(
    index: type[RadixCache] | type[BlockHashCache],
) -> None:
    groups = (FULL_GROUP, WINDOW_GROUP)
    kv = KVManager(groups, 64, index(groups), step_tokens=8)
    first, second, third = (make_branch(prompt(41)) for _ in range(3))
    compute(kv, first, 40, step=1)
    kv.release(first)
    for block in [block for block in kv.pool.cached_blocks() if block.group == 1]:
        kv.pool.forget(block)

    assert kv.find(second).tokens == 0
    compute(kv, second, 40, step=2)
    kv.release(second)

    assert kv.find(third).tokens == 40
