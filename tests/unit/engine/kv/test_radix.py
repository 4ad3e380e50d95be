"""The radix cache: walks, parts of blocks, replacement, what is lost with a block, salts, speed and memory."""

from __future__ import annotations

from itertools import count

import pytest

from kvik_engine.kv.block import Block
from kvik_engine.kv.check import check_books, check_idle
from kvik_engine.kv.manager import KVManager
from kvik_engine.kv.radix import RadixCache
from kvik_engine.kv.token_tree import Node, Siblings, common_tokens, pack
from kvik_engine.request import Branch
from kvik_engine.step import GroupKind, KVGroup, Row
from tests.support import kv_driver
from tests.support.engine_harness import Harness
from tests.support.kv_driver import make_branch

BLOCK = 4
_steps = count(1)


def make_kv(blocks: int = 32, *, window: int | None = None) -> KVManager:
    kind = GroupKind.FULL if window is None else GroupKind.WINDOW
    groups = [KVGroup(kind, (0,), BLOCK, 64, window)]
    return KVManager(groups, blocks, RadixCache(groups), step_tokens=16)


def compute(kv: KVManager, branch: Branch, upto: int) -> None:
    """All tokens up to `upto` in one settled step."""
    kv_driver.compute(kv, branch, upto, next(_steps))
    check_books(kv)


def serve(kv: KVManager, tokens: list[int], *, salt: bytes = b"", upto: int | None = None) -> Branch:
    """A branch computes its tokens and ends."""
    branch = make_branch(tokens, salt=salt)
    compute(kv, branch, len(tokens) if upto is None else upto)
    kv.release(branch)
    check_idle(kv)
    return branch


def found(kv: KVManager, tokens: list[int], *, salt: bytes = b"") -> int:
    return kv.find(make_branch(tokens, salt=salt)).tokens


def test_a_hit_ends_within_a_block() -> None:
    kv = make_kv()
    serve(kv, list(range(12)))
    assert found(kv, [*range(10), 50, 51]) == 10
    hit = kv.find(make_branch([*range(10), 50, 51]))
    assert (hit.whole_tokens, hit.part and hit.part.tokens) == (8, 2)


def test_at_least_one_token_is_left_to_compute() -> None:
    kv = make_kv()
    serve(kv, list(range(12)))
    assert [found(kv, list(range(length))) for length in range(1, 13)] == list(range(12))


def test_the_last_part_filled_block_is_found_after_the_end() -> None:
    kv = make_kv()
    serve(kv, list(range(11)), upto=10)
    assert found(kv, [*range(10), 77, 78]) == 10
    assert found(kv, [*range(9), 77, 78]) == 9


def test_a_longer_block_replaces_a_part_filled_one() -> None:
    kv = make_kv()
    serve(kv, list(range(6)))
    assert kv.pool.cached == 2
    serve(kv, list(range(7)))
    assert kv.pool.cached == 2
    serve(kv, list(range(9)))
    assert kv.pool.cached == 3
    assert found(kv, [*range(9), 77]) == 9


def test_a_shorter_part_does_not_replace_a_longer_one() -> None:
    kv = make_kv()
    serve(kv, list(range(7)))
    serve(kv, list(range(6)))
    assert kv.pool.cached == 2
    assert found(kv, [*range(7), 77]) == 7


def test_of_many_siblings_the_one_that_shares_most_is_found() -> None:
    kv = make_kv(64)
    for first in (0, 1, 255, 256, 65536, 70000):
        for second in (3, 1, 2):
            serve(kv, [first, second, 5, 6, 7])
    for first in (0, 1, 255, 256, 65536, 70000):
        assert found(kv, [first, 2, 5, 99, 99]) == 3
        assert found(kv, [first, 9, 5, 6, 7]) == 1
    assert found(kv, [2, 1, 5, 6, 7]) == 0


def test_a_hit_within_a_block_is_copied_and_its_source_stays_until_the_step_is_done() -> None:
    kv = make_kv(3)
    serve(kv, list(range(8)))
    source = kv.find(make_branch([*range(6), 70, 71])).sources[0]
    branch = make_branch([*range(6), 70, 71])
    started = kv.start(branch, kv.find(branch), step=next(_steps))
    step = kv.pins and max(kv._pinned)
    assert [(copy.source, copy.target) for copy in started.copies] == [(source.id, started.tables[0][1])]
    assert (source.holders, source.pins, kv.pool.available) == (0, 1, 0)
    check_books(kv)
    kv.settle(step)
    assert (source.pins, kv.pool.cached) == (0, 1)


def test_no_part_is_taken_where_its_source_would_be_in_the_way() -> None:
    kv = make_kv(2)
    serve(kv, list(range(8)))
    hit = kv.find(make_branch([*range(6), 70, 71]))
    assert (hit.tokens, hit.part) == (4, None)
    harness = Harness(blocks=4, max_batch_tokens=64)
    for request_id in range(3):
        harness.submit(request_id, [*range(1, 8), 20 + request_id], max_tokens=9, stop_token_ids=())
        harness.run()
        harness.assert_solo(request_id)


def test_an_answer_is_found_by_the_next_turn_but_for_its_last_token() -> None:
    """The last token of an answer was sampled and never computed."""
    harness = Harness(blocks=64)
    turn, known = [5, 6, 7, 8, 9, 10], 0
    for request_id in range(4):
        harness.submit(request_id, turn, max_tokens=7, stop_token_ids=())
        harness.run()
        harness.assert_solo(request_id)
        answer = harness.output(request_id)
        assert harness.heard[request_id, 0].cached_tokens == known
        known = len(turn) + len(answer) - 1
        turn = [*turn, *answer, 11, 12, 13]


def test_a_preempted_request_finds_all_but_one_of_its_tokens_again() -> None:
    kv = make_kv()
    branch = make_branch(list(range(11)))
    compute(kv, branch, 11)
    kv.release(branch)
    branch.preempt()
    assert kv.find(branch).tokens == 10


def test_tokens_behind_a_stop_string_are_in_no_node() -> None:
    """vllm #5543: after a stop string the cache held text that was never part of the answer."""
    kv = make_kv()
    branch = make_branch(list(range(15)))
    compute(kv, branch, 14)
    kv.release(branch, accepted=6)
    check_idle(kv)
    assert found(kv, list(range(15))) == 6
    assert kv.pool.cached == 2


def test_tokens_that_were_not_computed_are_in_no_node() -> None:
    kv = make_kv()
    branch = make_branch(list(range(15)))
    compute(kv, branch, 6)
    kv.prepare(branch, 15, 900)
    branch.plan(15, 900, samples=False)
    kv.release(branch)
    assert found(kv, list(range(15))) == 6
    kv.settle(900)
    check_idle(kv)


def test_a_part_that_a_fork_still_writes_behind_is_no_node() -> None:
    kv = make_kv()
    source = make_branch(list(range(6)), n=2)
    compute(kv, source, 6)
    fork = source.request.branches[1]
    kv.fork(source, fork, 6)
    fork.row = Row(1)
    fork.start(6, computed=6, scheduled=6)
    kv.release(source)
    assert found(kv, [*range(6), 1]) == 4
    fork.tokens.append(9)
    compute(kv, fork, 7)
    kv.release(fork)
    check_idle(kv)
    assert found(kv, [*range(6), 9, 1]) == 7


def test_what_an_equal_blocks_owner_loses_is_added_again_by_the_other() -> None:
    """Two branches compute the same prompt at once; the one whose blocks are found ends, and they are reused."""
    kv = make_kv(6)
    first, second = make_branch(list(range(8))), make_branch(list(range(9)))
    for branch in (first, second):
        kv.start(branch, kv.find(branch), 1000)
        branch.row = Row(0)
        branch.start(len(branch.tokens), computed=0, scheduled=0)
    compute(kv, first, 8)
    compute(kv, second, 8)
    kv.release(first)
    filler = make_branch(list(range(60, 72)))
    compute(kv, filler, 12)
    assert kv.find(make_branch(list(range(9)))).tokens == 4
    kv.release(filler)
    compute(kv, second, 9)
    kv.release(second)
    assert found(kv, [*range(9), 1]) == 9


def test_a_block_that_is_lost_takes_everything_below_it_along() -> None:
    kv = make_kv()
    serve(kv, list(range(16)))
    serve(kv, [*range(8), 50, 51, 52, 53])
    first = kv.find(make_branch(list(range(16)))).blocks[0][1]
    kv.pool.forget(first)
    check_idle(kv)
    assert (kv.pool.cached, found(kv, list(range(16)))) == (1, 4)


def test_cached_blocks_go_leaves_first() -> None:
    kv = make_kv(8)
    serve(kv, list(range(16)))
    serve(kv, [*range(8), 50, 51, 52, 53, 54, 55, 56, 57])
    assert (kv.pool.free, kv.pool.cached) == (2, 6)
    holder = make_branch([100 + i for i in range(8 * BLOCK)])
    for blocks in range(1, 9):
        compute(kv, holder, blocks * BLOCK)
        for block in kv.pool.cached_blocks():
            node = block.entry
            assert isinstance(node, Node)
            assert node.parent is not None
    assert (kv.pool.free, kv.pool.cached) == (0, 0)


def test_salts_have_trees_of_their_own_that_leave_nothing_behind() -> None:
    kv = make_kv()
    for salt in (b"", b"one", b"two"):
        assert found(kv, list(range(9)), salt=salt) == 0
        serve(kv, list(range(9)), salt=salt)
        assert found(kv, list(range(9)), salt=salt) == 8
    for block in kv.pool.cached_blocks():
        if block.entry is not None:
            kv.pool.forget(block)
    check_idle(kv)
    cache = kv._cache
    assert isinstance(cache, RadixCache)
    assert cache._roots == {}


def test_a_walk_goes_on_where_the_last_one_ended() -> None:
    kv = make_kv(64)
    waiting = make_branch(list(range(40)))
    assert kv.find(waiting).tokens == 0
    serve(kv, list(range(20)))
    assert kv.find(waiting).tokens == 20
    serve(kv, list(range(36)))
    assert kv.find(waiting).tokens == 36
    for block in reversed(kv.find(waiting).blocks[0][3:]):
        kv.pool.forget(block)
    assert kv.find(waiting).tokens == 12


def test_of_a_windowed_path_only_the_window_is_held_and_the_rest_may_go() -> None:
    kv = make_kv(64, window=6)
    serve(kv, list(range(40)))
    branch = make_branch([*range(40), 50, 51])
    compute(kv, branch, 41)
    assert kv.held(branch) == 3
    for block in kv.pool.cached_blocks():
        kv.pool.forget(block)
    check_books(kv)
    kv.release(branch)
    check_idle(kv)
    assert found(kv, [*range(40), 50, 51]) == 41
    assert found(kv, [*range(36), 70]) == 0


def test_siblings_stay_in_order_and_shrink_to_one() -> None:
    root = Node(b"", ())
    nodes = [Node(pack([token]), (Block(token),)) for token in (5, 1, 300, 2)]
    for node in nodes:
        root.attach(node)
    assert isinstance(root.children, Siblings)
    assert root.children.keys == sorted(node.key for node in nodes)
    for node in nodes[:3]:
        node.detach()
        assert root.child(node.key) is None
    assert root.children is nodes[3]
    nodes[3].detach()
    assert root.children is None


@pytest.mark.parametrize(("one", "other", "common"), [([], [1], 0), ([1, 2], [1, 2, 3], 2), ([256], [0], 0)])
def test_common_tokens_are_counted_whole(one: list[int], other: list[int], common: int) -> None:
    assert common_tokens(pack(one), pack(other)) == common_tokens(pack(other), pack(one)) == common
