"""The queue: each pool once, never two workers on one pool, and back-off that neither spins nor starves."""

import random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kvik_operator.names import PoolKey
from kvik_operator.watch.queue import Backoff, KeyQueue

A, B = PoolKey("demo", "a"), PoolKey("demo", "b")


def queue() -> KeyQueue:
    return KeyQueue(Backoff(first=1.0, cap=60.0), random.Random(1))


def test_a_pool_that_changes_ten_times_is_looked_at_once() -> None:
    q = queue()
    for _ in range(10):
        q.add(A, 0.0)
    assert q.take(0.0) == A
    assert q.take(0.0) is None


def test_pools_are_taken_in_the_order_in_which_they_changed() -> None:
    q = queue()
    q.add(A, 0.0)
    q.add(B, 1.0)
    q.add(A, 2.0)
    assert [q.take(3.0), q.take(3.0)] == [A, B]


def test_a_pool_is_never_handed_out_twice_at_once_and_a_change_meanwhile_is_kept() -> None:
    q = queue()
    q.add(A, 0.0)
    assert q.take(0.0) == A
    q.add(A, 1.0)
    assert q.take(1.0) is None
    q.done(A, 2.0)
    assert q.take(2.0) == A


def test_a_delayed_look_comes_when_it_is_due_and_the_earliest_wins() -> None:
    q = queue()
    q.add_after(A, 30.0, 0.0)
    q.add_after(A, 10.0, 0.0)
    q.add_after(A, 20.0, 0.0)
    assert q.take(9.9) is None
    assert q.next_due(9.0) == 1.0
    assert q.take(10.0) == A
    q.done(A, 10.0)
    assert q.take(1000.0) is None


def test_a_change_overtakes_a_delayed_look() -> None:
    q = queue()
    q.add_after(A, 30.0, 0.0)
    q.add(A, 1.0)
    assert q.take(1.0) == A
    q.done(A, 1.0)
    assert q.take(1000.0) is None


def test_failures_back_off_exponentially_up_to_the_cap_and_success_forgets_them() -> None:
    q, now, delays = queue(), 0.0, []
    q.add(A, now)
    for _ in range(12):
        assert q.take(now) == A
        delays.append(q.failed(A, now))
        now += delays[-1]
    assert all(2.0**n / 2 <= delay <= min(2.0**n, 60.0) for n, delay in enumerate(delays[:6]))
    assert all(30.0 <= delay <= 60.0 for delay in delays[6:])
    assert q.take(now) == A
    q.done(A, now)
    q.add(A, now)
    q.take(now)
    assert q.failed(A, now) <= 1.0


def test_a_noisy_pool_that_fails_waits_for_its_back_off_too() -> None:
    q = queue()
    q.add(A, 0.0)
    q.take(0.0)
    q.add(A, 0.1)
    assert q.failed(A, 0.2) > 0
    assert q.take(0.2) is None


def test_the_server_may_ask_for_a_longer_wait() -> None:
    q = queue()
    q.add(A, 0.0)
    q.take(0.0)
    assert q.failed(A, 0.0, at_least=120.0) == 120.0


def test_the_age_covers_what_waits_and_what_is_worked_on() -> None:
    q = queue()
    assert q.oldest_age(5.0) == 0.0
    q.add(A, 0.0)
    q.add(B, 2.0)
    assert q.oldest_age(5.0) == 5.0
    q.take(5.0)
    assert q.oldest_age(6.0) == 4.0
    assert q.oldest_age(100.0) == 98.0


def test_a_long_queue_that_is_worked_off_is_not_stuck() -> None:
    q = queue()
    assert q.stuck_for(5.0) == 0.0
    for n in range(300):
        q.add(PoolKey("demo", f"p{n}"), 0.0)
    for now in range(1, 200):
        key = q.take(float(now))
        assert key is not None
        q.done(key, now + 0.5)
        assert q.stuck_for(now + 1.0) <= 1.0


def test_work_that_never_ends_and_keys_that_nobody_takes_are() -> None:
    q = queue()
    q.add(A, 0.0)
    assert q.stuck_for(50.0) == 50.0
    q.take(50.0)
    assert q.stuck_for(170.0) == 120.0


@given(st.integers(1, 200), st.integers(0, 2**32))
def test_a_back_off_is_never_zero_and_never_above_its_cap(failures: int, seed: int) -> None:
    assert 0 < Backoff(first=0.5, cap=60.0).delay(failures, random.Random(seed)) <= 60.0


class QueueMachine(RuleBasedStateMachine):
    """Random use against a model: no change is ever lost, and no pool is in two hands."""

    def __init__(self) -> None:
        super().__init__()
        self.q = queue()
        self.now = 0.0
        self.changed: set[PoolKey] = set()
        self.busy: set[PoolKey] = set()

    key = st.sampled_from([A, B, PoolKey("demo", "c")])

    @rule(key=key)
    def change(self, key: PoolKey) -> None:
        self.q.add(key, self.now)
        self.changed.add(key)

    @rule(key=key, delay=st.floats(0, 100))
    def later(self, key: PoolKey, delay: float) -> None:
        self.q.add_after(key, delay, self.now)

    @rule(seconds=st.floats(0, 100))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def take(self) -> None:
        key = self.q.take(self.now)
        if key is not None:
            assert key not in self.busy
            self.busy.add(key)
            self.changed.discard(key)

    @rule(data=st.data(), succeeds=st.booleans())
    def give_back(self, data: Any, succeeds: bool) -> None:
        if self.busy:
            key = data.draw(st.sampled_from(sorted(self.busy)))
            self.busy.remove(key)
            if succeeds:
                self.q.done(key, self.now)
            else:
                self.q.failed(key, self.now)

    @invariant()
    def a_changed_pool_comes_up_in_the_end(self) -> None:
        waiting = self.changed - self.busy
        if waiting:
            due = self.q.next_due(self.now)
            assert due is not None
            assert due <= 60.0


QueueMachine.TestCase.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)
TestQueueMachine = QueueMachine.TestCase
