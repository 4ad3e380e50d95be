from __future__ import annotations

from kvik_engine.kv.check import check_books, check_idle
from kvik_engine.kv.contiguous import ContiguousKVManager
from kvik_engine.kv.prefix_cache import Hit
from kvik_engine.params import SamplingParams
from kvik_engine.request import Branch, Request
from kvik_engine.scheduler.room import ContiguousRoom
from kvik_engine.step import GroupKind, KVGroup

NOTHING = Hit(0, ((),))


def make_kv(blocks: int, reserved_tokens: int | None = None) -> ContiguousKVManager:
    groups = [KVGroup(GroupKind.FULL, (0,), 4, 64)]
    return ContiguousKVManager(groups, blocks, step_tokens=64, reserved_tokens=reserved_tokens)


def make(prompt: int, max_tokens: int, n: int = 1) -> Branch:
    params = SamplingParams(max_tokens=max_tokens, seed=0, n=n)
    return Request((1, 1), [1] * prompt, params, 1, 0, b"", 0.0).branches[0]


def room_for(kv: ContiguousKVManager, branch: Branch) -> bool:
    return ContiguousRoom().has_room(
        branch.request, kv, running=[], hit=NOTHING, owed=0, more_blocks=0, pool_was_full=False
    )


def test_a_request_owns_all_it_may_need_from_the_start() -> None:
    kv = make_kv(10)
    branch = make(5, 12)
    (table,) = kv.start(branch, NOTHING, 1).tables
    assert table == (1, 2, 3, 4)
    assert kv.pool.owned == 4
    assert kv.growth(branch, branch.request.token_limit - 1) == 0
    check_books(kv)
    kv.release(branch)
    check_idle(kv)


def test_free_blocks_that_are_no_run_are_no_room() -> None:
    kv = make_kv(6)
    branches = [make(4, 5) for _ in range(3)]
    for branch in branches:
        kv.start(branch, NOTHING, 1)
    kv.release(branches[0])
    kv.release(branches[2])
    assert kv.pool.free == 4
    assert room_for(kv, make(4, 5))
    assert not room_for(kv, make(4, 9))
    kv.release(branches[1])
    assert room_for(kv, make(4, 9))
    check_idle(kv)


def test_a_reservation_for_the_context_is_the_same_for_every_request() -> None:
    kv = make_kv(10, reserved_tokens=16)
    assert kv.reservation(make(1, 1).request) == kv.reservation(make(8, 8).request) == 4


def test_several_choices_and_what_is_larger_than_the_pool_never_fit() -> None:
    kv = make_kv(3)
    assert ContiguousRoom().can_ever_fit(make(4, 9).request, kv, rows=4)
    assert not ContiguousRoom().can_ever_fit(make(4, 10).request, kv, rows=4)
    assert not ContiguousRoom().can_ever_fit(make(1, 1, n=2).request, kv, rows=4)
