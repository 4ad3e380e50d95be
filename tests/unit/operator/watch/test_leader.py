"""The election, against a Lease in memory with the API server's rule: a write names the version it was made from."""

import asyncio
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from kvik_operator.errors import ClusterError, Conflict, Unavailable
from kvik_operator.watch.leader import Elector, LeaseTimes, Sighting, Step, decide, look

TIMES = LeaseTimes()
Object = Mapping[str, Any]


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Lease:
    """One Lease; `down` makes every call fail as an unreachable server does."""

    def __init__(self) -> None:
        self.stored: dict[str, Any] | None = None
        self.version = 0
        self.down = False
        self.writes = 0
        self.before_answer: Callable[[], None] = lambda: None

    async def read(self) -> Object | None:
        self._reach()
        return None if self.stored is None else dict(self.stored)

    async def create(self, spec: Object) -> Object:
        self._reach()
        if self.stored is not None:
            raise Conflict("create", 409, "AlreadyExists", "exists")
        return self._write(spec)

    async def replace(self, lease: Object, spec: Object) -> Object:
        self._reach()
        assert self.stored is not None
        self.before_answer()
        if lease["metadata"]["resourceVersion"] != self.stored["metadata"]["resourceVersion"]:
            raise Conflict("renew", 409, "Conflict", "modified")
        return self._write(spec)

    def _write(self, spec: Object) -> Object:
        self.version += 1
        self.writes += 1
        self.stored = {"metadata": {"resourceVersion": str(self.version)}, "spec": dict(spec)}
        return dict(self.stored)

    def _reach(self) -> None:
        if self.down:
            raise Unavailable("lease", None, "TimeoutError", "no answer")

    @property
    def holder(self) -> str:
        assert self.stored is not None
        holder: str = self.stored["spec"]["holderIdentity"]
        return holder


class Candidate:
    """An elector that is stepped by hand."""

    def __init__(self, name: str, clock: Clock) -> None:
        self.lost = False
        self.told = 0
        """How often it was told that it may write, at first or again."""
        self.elector = Elector(
            name, TIMES, lost=self._lose, clock=clock, utcnow=lambda: datetime(2026, 1, 1, tzinfo=UTC)
        )

    def _lose(self) -> None:
        self.lost = True

    def _writable(self) -> None:
        self.told += 1

    async def step(self, lease: Lease) -> None:
        """One turn of the elector's own loop, which then sleeps for ever."""
        task = asyncio.create_task(self.elector.run(lease, self._writable))
        for _ in range(20):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def test_an_absent_lease_is_created_and_our_own_renewed() -> None:
    assert decide(None, "me", 0.0) is Step.CREATE
    assert decide(Sighting("me", (), 0.0, 15.0), "me", 100.0) is Step.RENEW


def test_another_holder_is_waited_for_until_its_lease_was_seen_unchanged_for_its_duration() -> None:
    seen = Sighting("other", (), since=100.0, duration=15.0)
    assert decide(seen, "me", 114.9) is Step.WAIT
    assert decide(seen, "me", 115.0) is Step.TAKE


def test_a_cleared_lease_is_taken_at_once() -> None:
    assert decide(Sighting("", (), 0.0, 1.0), "me", 0.0) is Step.TAKE


def test_only_our_own_clock_counts_however_wrong_the_holders_is() -> None:
    lease = {"spec": {"holderIdentity": "other", "renewTime": "1999-01-01T00:00:00Z", "leaseDurationSeconds": 15}}
    first = look(lease, None, 50.0, TIMES)
    assert look(lease, first, 60.0, TIMES).since == 50.0
    renewed = {"spec": {**lease["spec"], "renewTime": "1999-01-01T00:00:02Z"}}
    assert look(renewed, first, 60.0, TIMES).since == 60.0


async def test_the_first_one_leads_and_the_second_waits() -> None:
    clock, lease = Clock(), Lease()
    one, two = Candidate("one", clock), Candidate("two", clock)
    await one.step(lease)
    await two.step(lease)
    assert one.elector.may_write()
    assert not two.elector.may_write()
    assert lease.holder == "one"


async def test_the_fence_closes_ten_seconds_after_the_last_renewal() -> None:
    clock, lease = Clock(), Lease()
    one = Candidate("one", clock)
    await one.step(lease)
    clock.now += 9.9
    assert one.elector.may_write()
    clock.now += 0.1
    assert not one.elector.may_write()


@pytest.mark.parametrize(("since", "want"), [(0.0, 15.0), (9.0, 6.0), (9.9, 5.1), (10.0, 0.0), (600.0, 0.0)])
async def test_a_write_may_take_until_another_replica_may_lead(since: float, want: float) -> None:
    clock, lease = Clock(), Lease()
    one, two = Candidate("one", clock), Candidate("two", clock)
    assert one.elector.seconds_left() == 0.0
    await one.step(lease)
    await two.step(lease)
    clock.now += since
    assert one.elector.seconds_left() == pytest.approx(want)
    clock.now += max(0.0, want - 0.01)
    await two.step(lease)
    assert not two.elector.is_leader() or want == 0.0


async def test_an_outage_closes_the_fence_but_does_not_end_the_process() -> None:
    """While the API server is away nobody else can take the lease (kopf #957, prometheus-operator #129)."""
    clock, lease = Clock(), Lease()
    one = Candidate("one", clock)
    await one.step(lease)
    lease.down = True
    clock.now += 600.0
    await one.step(lease)
    assert not one.elector.may_write()
    assert not one.lost
    lease.down = False
    await one.step(lease)
    assert one.elector.may_write()


async def test_when_an_outage_is_over_the_leader_is_told_that_it_may_write_again() -> None:
    """Pools whose writes the closed fence refused would wait out their back-off, half a minute at most, else."""
    clock, lease = Clock(), Lease()
    one = Candidate("one", clock)
    await one.step(lease)
    clock.now += 2.0
    await one.step(lease)
    assert one.told == 1
    lease.down = True
    for _ in range(6):
        clock.now += 2.0
        await one.step(lease)
    assert one.told == 1
    lease.down = False
    await one.step(lease)
    await one.step(lease)
    assert one.told == 2


async def test_an_outage_shorter_than_the_fence_is_no_news() -> None:
    clock, lease = Clock(), Lease()
    one = Candidate("one", clock)
    await one.step(lease)
    lease.down = True
    clock.now += 9.0
    await one.step(lease)
    lease.down = False
    await one.step(lease)
    assert one.told == 1


async def test_a_fence_that_closes_while_the_renewal_is_answered_opens_with_a_word() -> None:
    clock, lease = Clock(), Lease()
    one = Candidate("one", clock)
    await one.step(lease)
    clock.now += 8.0
    lease.before_answer = lambda: setattr(clock, "now", clock.now + 3.0)
    await one.step(lease)
    assert one.told == 2


async def test_a_frozen_leader_that_wakes_up_finds_the_lease_taken_and_ends() -> None:
    """cilium PR #42920: a leader acted after its deadline."""
    clock, lease = Clock(), Lease()
    one, two = Candidate("one", clock), Candidate("two", clock)
    await one.step(lease)
    await two.step(lease)
    clock.now += 20.0
    assert not one.elector.may_write()
    await two.step(lease)
    assert two.elector.may_write()
    await one.step(lease)
    assert one.lost
    assert lease.holder == "two"


async def test_a_leader_whose_lease_was_released_by_another_ends_as_well() -> None:
    clock, lease = Clock(), Lease()
    one, two = Candidate("one", clock), Candidate("two", clock)
    await one.step(lease)
    await two.step(lease)
    clock.now += 20.0
    await two.step(lease)
    await two.elector.release()
    await one.step(lease)
    assert one.lost


async def test_release_clears_the_lease_so_that_another_takes_over_at_once() -> None:
    clock, lease = Clock(), Lease()
    one, two = Candidate("one", clock), Candidate("two", clock)
    await one.step(lease)
    await two.step(lease)
    await one.elector.release()
    assert not one.elector.may_write()
    assert lease.holder == ""
    await two.step(lease)
    assert two.elector.may_write()


async def test_a_replica_that_does_not_lead_releases_nothing() -> None:
    clock, lease = Clock(), Lease()
    one, two = Candidate("one", clock), Candidate("two", clock)
    await one.step(lease)
    await two.step(lease)
    writes = lease.writes
    await two.elector.release()
    assert (lease.holder, lease.writes) == ("one", writes)


async def test_of_two_that_find_no_lease_one_wins() -> None:
    clock, lease = Clock(), Lease()
    one, two = Candidate("one", clock), Candidate("two", clock)
    await asyncio.gather(one.step(lease), two.step(lease))
    assert [one.elector.may_write(), two.elector.may_write()].count(True) == 1


async def test_times_are_written_in_utc_as_micro_time() -> None:
    lease = Lease()
    await Candidate("one", Clock()).step(lease)
    assert lease.stored is not None
    assert lease.stored["spec"]["renewTime"] == "2026-01-01T00:00:00.000000Z"
    assert lease.stored["spec"]["leaseDurationSeconds"] == 15


async def test_an_error_while_releasing_is_not_an_error_of_the_process() -> None:
    lease, one = Lease(), Candidate("one", Clock())
    await one.step(lease)
    lease.down = True
    await one.elector.release()
    assert issubclass(Unavailable, ClusterError)
    assert not one.elector.may_write()
