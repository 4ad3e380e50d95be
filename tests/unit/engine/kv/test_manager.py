"""Block tables, sharing, copy-on-write and release."""

from __future__ import annotations

import pytest

from kvik_engine.kv.check import BooksDoNotBalance, check_books, check_idle
from kvik_engine.kv.manager import KVManager
from kvik_engine.kv.prefix_cache import NoPrefixCache
from kvik_engine.kv.prefix_hash import BlockHashCache
from kvik_engine.request import Branch
from kvik_engine.step import GroupKind, KVGroup, Row
from tests.support.kv_driver import compute, make_branch

BLOCK = 4


def make_kv(blocks: int = 16, *, groups: int = 1, prefix_cache: bool = True) -> KVManager:
    kv_groups = [KVGroup(GroupKind.FULL, (layer,), BLOCK, 64) for layer in range(groups)]
    cache = BlockHashCache(kv_groups) if prefix_cache else NoPrefixCache(groups)
    return KVManager(kv_groups, blocks, cache, step_tokens=16)


def finish(kv: KVManager, branch: Branch) -> None:
    kv.release(branch)
    check_books(kv)


def test_a_branch_gets_a_block_when_it_needs_one_and_not_before() -> None:
    kv = make_kv()
    branch = make_branch(list(range(10)))
    compute(kv, branch, 3, 1)
    assert kv.held(branch) == 1
    assert kv.has_room(branch, 4)
    assert not kv.has_room(branch, 5)
    assert kv.missing(branch, 10) == 2
    compute(kv, branch, 10, 2)
    assert kv.held(branch) == 3


def test_every_group_has_a_block_table_of_its_own_over_one_pool() -> None:
    kv = make_kv(groups=2)
    branch = make_branch(list(range(9)))
    compute(kv, branch, 9, 1)
    tables = kv.tables(branch)
    assert [len(table) for table in tables] == [3, 3]
    assert len({block for table in tables for block in table}) == 6
    finish(kv, branch)
    assert kv.find(make_branch(list(range(9)))).tokens == 2 * BLOCK


def test_a_warm_prompt_hits_its_whole_blocks_but_never_all_of_its_tokens() -> None:
    kv = make_kv()
    branch = make_branch(list(range(8)))
    compute(kv, branch, 8, 1)
    finish(kv, branch)
    assert kv.find(make_branch(list(range(8)))).tokens == 1 * BLOCK
    assert kv.find(make_branch([*range(8), 99])).tokens == 2 * BLOCK
    assert kv.find(make_branch([*range(7), 99, 98])).tokens == 1 * BLOCK
    assert kv.find(make_branch([99, *range(1, 9)])).tokens == 0


def test_equal_blocks_behind_different_beginnings_are_different() -> None:
    kv = make_kv()
    compute(kv, make_branch([1, 1, 1, 1, 7, 7, 7, 7, 7]), 9, 1)
    assert kv.find(make_branch([2, 2, 2, 2, 7, 7, 7, 7, 7])).tokens == 0


def test_requests_of_different_salts_never_share_a_block() -> None:
    """vllm GHSA-rm76-4mrf-v9r8: a shared cache tells one tenant what another asked."""
    kv = make_kv()
    compute(kv, make_branch(list(range(9)), salt=b"one"), 9, 1)
    assert kv.find(make_branch(list(range(9)), salt=b"two")).tokens == 0
    assert kv.find(make_branch(list(range(9)), salt=b"one")).tokens == 2 * BLOCK


def test_only_computed_tokens_are_indexed() -> None:
    """What a planned step will compute is found by nobody before it is settled (sglang #38319)."""
    kv = make_kv()
    branch = make_branch(list(range(9)))
    compute(kv, branch, 4, 1)
    compute(kv, branch, 9, 2, settle=False)
    kv.commit(branch)
    assert kv.find(make_branch(list(range(9)))).tokens == 1 * BLOCK


def test_tokens_behind_a_stop_string_are_not_found_again() -> None:
    """vllm #5543: after a stop string the cache held text that was never part of the answer."""
    kv = make_kv()
    branch = make_branch(list(range(12)))
    compute(kv, branch, 12, 1)
    kv.release(branch, accepted=6)
    check_books(kv)
    assert kv.find(make_branch(list(range(12)))).tokens == 1 * BLOCK
    assert kv.pool.cached == 1


def test_tokens_behind_a_stop_string_are_not_found_again_when_it_is_noticed_after_preemption() -> None:
    kv = make_kv()
    branch = make_branch(list(range(12)))
    compute(kv, branch, 12, 1)
    kv.release(branch)
    branch.preempt()
    assert kv.pool.cached == 3
    kv.release(branch, accepted=6)
    check_books(kv)
    assert (kv.pool.cached, kv.pool.free) == (1, 15)


def test_a_disabled_cache_finds_nothing_and_keeps_nothing() -> None:
    kv = make_kv(prefix_cache=False)
    branch = make_branch(list(range(9)))
    compute(kv, branch, 9, 1)
    finish(kv, branch)
    assert kv.find(make_branch(list(range(9)))).tokens == 0
    assert (kv.pool.free, kv.pool.cached) == (16, 0)


def test_a_prefix_outlives_its_ends() -> None:
    """Released tail first: the last block of a chain is reused before the first."""
    kv = make_kv(3)
    branch = make_branch(list(range(12)))
    compute(kv, branch, 12, 1)
    chain = kv.tables(branch)[0]
    finish(kv, branch)
    assert [block.id for block in kv.pool.cached_blocks()] == list(reversed(chain))
    other = make_branch([50, 51])
    compute(kv, other, 2, 2)
    assert kv.find(make_branch([*range(12), 1])).tokens == 2 * BLOCK


def test_a_hit_takes_the_blocks_out_of_reach_of_others() -> None:
    """mini-sglang PR #142: pages were freed while a table still pointed at them."""
    kv = make_kv(3)
    first = make_branch(list(range(9)))
    compute(kv, first, 9, 1)
    finish(kv, first)
    second = make_branch(list(range(9)))
    compute(kv, second, 9, 2)
    assert kv.pool.available == 0
    assert kv.missing(second, 9) == 0


def fork_of(kv: KVManager, source: Branch, tokens: int) -> Branch:
    target = source.request.branches[1]
    kv.fork(source, target, tokens)
    target.row = Row(1)
    target.start(tokens, computed=tokens, scheduled=tokens)
    return target


def test_the_first_writer_copies_a_shared_part_filled_block_and_the_last_writes_in_place() -> None:
    kv = make_kv()
    source = make_branch(list(range(6)), n=2)
    compute(kv, source, 6, 1)
    target = fork_of(kv, source, 6)
    for branch in (source, target):
        branch.tokens.append(1)
    assert kv.missing(source, 7) == 1
    own = kv.prepare(source, 7, 2).copies[0]
    assert (own.index, own.copy.source, own.copy.target) == (1, kv.tables(target)[0][1], kv.tables(source)[0][1])
    assert kv.missing(target, 7) == 0
    assert kv.prepare(target, 7, 2).copies == ()
    assert kv.tables(source)[0][0] == kv.tables(target)[0][0]
    check_books(kv)


def test_a_fork_closes_the_shared_block_to_both_until_each_has_asked() -> None:
    kv = make_kv()
    source = make_branch(list(range(6)), n=2)
    compute(kv, source, 6, 1)
    assert kv.has_room(source, 7)
    target = fork_of(kv, source, 6)
    for branch, copies in ((source, 1), (target, 0)):
        branch.tokens.append(1)
        assert not kv.has_room(branch, 7)
        assert len(kv.prepare(branch, 7, 2).copies) == copies
        assert kv.has_room(branch, 8)
        assert not kv.has_room(branch, 9)
    check_books(kv)


def test_a_copys_source_is_not_reused_before_the_copy_is_done() -> None:
    kv = make_kv()
    source = make_branch(list(range(6)), n=2)
    compute(kv, source, 6, 1)
    target = fork_of(kv, source, 6)
    source.tokens.append(1)
    copied = kv.prepare(source, 7, 2).copies[0].copy.source
    kv.release(target)
    assert copied not in {block.id for block in kv.pool.free_blocks()}
    check_books(kv)
    kv.settle(2)
    assert copied in {block.id for block in kv.pool.free_blocks()}


def test_blocks_of_a_branch_that_leaves_stay_until_its_planned_step_is_settled() -> None:
    """sglang PR #18803: a slot was reused while an overlapped step still read it."""
    kv = make_kv(4)
    branch = make_branch(list(range(9)))
    compute(kv, branch, 8, 1)
    compute(kv, branch, 9, 2, settle=False)
    kv.release(branch)
    check_books(kv)
    assert (kv.pool.available, kv.pool.owned, kv.returning) == (1, 3, 3)
    kv.settle(2)
    check_idle(kv)
    assert kv.pool.available == 4


def test_a_branch_that_never_ran_can_be_released() -> None:
    """vllm PR #18485: aborted before it was ever scheduled."""
    kv = make_kv()
    kv.release(make_branch([1, 2, 3]))
    check_idle(kv)


def test_shared_blocks_come_back_only_with_their_last_branch() -> None:
    kv = make_kv()
    source = make_branch(list(range(9)), n=2)
    compute(kv, source, 9, 1)
    target = fork_of(kv, source, 9)
    assert kv.reclaimable([source]) == 0
    assert kv.reclaimable([source, target]) == 3
    kv.release(source)
    assert kv.pool.owned == 3
    kv.release(target)
    check_idle(kv)


def test_the_check_finds_a_lost_block() -> None:
    kv = make_kv()
    kv.pool.take(0)
    with pytest.raises(BooksDoNotBalance, match="0 tables have it"):
        check_books(kv)


def test_the_check_finds_a_block_that_is_owned_when_nothing_runs() -> None:
    kv = make_kv()
    branch = make_branch([1, 2, 3])
    compute(kv, branch, 3, 1)
    check_books(kv)
    with pytest.raises(BooksDoNotBalance, match="owned by nobody"):
        check_idle(kv)
