import random

import pytest

from kvik_engine.kv.host_pool import HostPool, Slot


def named(pool: HostPool, name: bytes) -> Slot:
    """A cached slot with this content."""
    slot = pool.take()
    pool.name(slot, (0, name))
    pool.unpin(slot)
    return slot


def states(pool: HostPool) -> tuple[int, int, int]:
    assert pool.free + pool.cached + pool.owned == pool.total
    assert len(pool.free_slots()) == pool.free
    assert len(pool.cached_slots()) == pool.cached
    return pool.free, pool.cached, pool.owned


def test_a_slot_goes_from_free_to_owned_to_cached_and_back() -> None:
    pool = HostPool(2)
    assert states(pool) == (2, 0, 0)
    slot = pool.take()
    assert states(pool) == (1, 0, 1)
    pool.name(slot, (0, b"a"))
    pool.hold(slot)
    pool.unpin(slot)
    assert states(pool) == (1, 0, 1)
    pool.drop(slot)
    assert states(pool) == (1, 1, 0)
    assert pool.find((0, b"a")) is slot
    pool.forget((0, b"a"))
    assert states(pool) == (2, 0, 0)
    assert pool.find((0, b"a")) is None


def test_a_slot_without_a_name_is_free_once_nobody_needs_it() -> None:
    pool = HostPool(1)
    pool.unpin(pool.take())
    assert states(pool) == (1, 0, 0)


def test_the_longest_unused_content_goes_first() -> None:
    pool = HostPool(3)
    for name in (b"a", b"b", b"c"):
        named(pool, name)
    found = pool.find((0, b"a"))
    assert found is not None
    pool.touch(found)
    pool.take()
    pool.take()
    assert [pool.find((0, name)) is not None for name in (b"a", b"b", b"c")] == [True, False, False]


def test_what_a_transfer_or_a_branch_needs_is_never_taken() -> None:
    pool = HostPool(2)
    held, pinned = named(pool, b"a"), named(pool, b"b")
    pool.hold(held)
    pool.pin(pinned)
    assert pool.available == 0
    pool.drop(held)
    assert pool.take() is held


def test_equal_content_is_found_in_the_first_slot_and_never_in_two() -> None:
    pool = HostPool(2)
    first = named(pool, b"a")
    second = named(pool, b"a")
    assert pool.find((0, b"a")) is first
    assert second.key is None
    assert states(pool) == (1, 1, 0)


def test_groups_do_not_share_content() -> None:
    pool = HostPool(2)
    named(pool, b"a")
    assert pool.find((1, b"a")) is None


def test_content_that_is_forgotten_while_a_transfer_reads_it_is_free_afterwards() -> None:
    pool = HostPool(1)
    slot = named(pool, b"a")
    pool.pin(slot)
    pool.forget((0, b"a"))
    assert states(pool) == (0, 0, 1)
    pool.unpin(slot)
    assert states(pool) == (1, 0, 0)


@pytest.mark.parametrize("seed", range(20))
def test_the_books_balance_whatever_happens(seed: int) -> None:
    chance = random.Random(seed)
    pool = HostPool(5)
    holds: list[Slot] = []
    pins: list[Slot] = []
    for _ in range(400):
        match chance.randrange(6):
            case 0 if pool.available:
                pins.append(pool.take())
                if chance.random() < 0.7:
                    pool.name(pins[-1], (0, bytes([chance.randrange(8)])))
            case 1 if pins:
                pool.unpin(pins.pop(chance.randrange(len(pins))))
            case 2 if pins:
                holds.append(chance.choice(pins))
                pool.hold(holds[-1])
            case 3 if holds:
                pool.drop(holds.pop(chance.randrange(len(holds))))
            case 4:
                slot = pool.find((0, bytes([chance.randrange(8)])))
                if slot is not None:
                    pins.append(slot)
                    pool.pin(slot)
            case 5:
                pool.forget((0, bytes([chance.randrange(8)])))
        states(pool)
        for slot in pool.slots:
            assert (slot.holders, slot.pins) == (holds.count(slot), pins.count(slot))
        assert pool.owned == len({*holds, *pins})
