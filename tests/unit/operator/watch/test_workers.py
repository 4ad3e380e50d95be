"""The workers: what they do with success, with each kind of failure, and before this process may write."""

import asyncio
import random
from collections.abc import Callable

from kvik_operator.errors import Conflict, Refused, Unavailable
from kvik_operator.names import PoolKey
from kvik_operator.reconcile.types import Requeue
from kvik_operator.watch.queue import Backoff
from kvik_operator.watch.workers import Work, Workers

A, B = PoolKey("demo", "a"), PoolKey("demo", "b")


class Meter:
    def __init__(self) -> None:
        self.outcomes: list[str] = []

    def reconciled(self, seconds: float, outcome: str) -> None:
        self.outcomes.append(outcome)


async def turn() -> None:
    """Let everything that is ready run, callbacks from other threads included."""
    for _ in range(20):
        await asyncio.sleep(0)


class Rig:
    """Workers on a clock that stands still unless it is moved."""

    def __init__(self, work: Work, count: int = 2) -> None:
        self.now = 0.0
        self.meter = Meter()
        self.workers = Workers(
            backoff=Backoff(first=1.0), meter=self.meter, rng=random.Random(1), clock=lambda: self.now
        )
        self._work, self._count = work, count

    async def __aenter__(self) -> "Rig":
        self._task = asyncio.create_task(self.workers.run(self._count, self._work))
        await turn()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def advance(self, seconds: float) -> None:
        self.now += seconds
        self.workers.add(())  # wakes the loop, whose own clock did not move
        await turn()


def recording(seen: list[PoolKey], outcome: Callable[[], Requeue | None] = lambda: None) -> Work:
    async def work(key: PoolKey) -> Requeue | None:
        seen.append(key)
        return outcome()

    return work


async def test_nothing_is_worked_on_before_this_process_may_write() -> None:
    seen: list[PoolKey] = []
    async with Rig(recording(seen)) as rig:
        rig.workers.add([A])
        await rig.advance(7200.0)
        assert seen == []
        assert (rig.workers.depth(), rig.workers.oldest_age(), rig.workers.stuck_for()) == (0, 0.0, 0.0)
        rig.workers.open(lambda: [A, B])
        assert rig.workers.oldest_age() == rig.workers.stuck_for() == 0.0, "its time as a standby is no delay"
        await turn()
        assert sorted(seen) == [A, B]


async def test_a_pool_that_comes_while_this_process_begins_to_lead_is_looked_at() -> None:
    seen: list[PoolKey] = []
    async with Rig(recording(seen)) as rig:

        def keys() -> list[PoolKey]:
            rig.workers.add([B])  # a watch, in its own thread, whose pool this listing does not have
            return [A]

        rig.workers.open(keys)
        await turn()
        assert sorted(seen) == [A, B]


async def test_a_pool_is_looked_at_again_when_it_said_so() -> None:
    seen: list[PoolKey] = []
    async with Rig(recording(seen, lambda: Requeue(10.0))) as rig:
        rig.workers.open(lambda: [A])
        await turn()
        await rig.advance(9.0)
        assert seen == [A]
        await rig.advance(1.0)
        assert seen == [A, A]


async def test_a_server_that_asks_to_wait_is_waited_for() -> None:
    seen: list[PoolKey] = []

    async def work(key: PoolKey) -> Requeue | None:
        seen.append(key)
        raise Unavailable("apply", 429, "TooManyRequests", "slow down", 30.0)

    async with Rig(work) as rig:
        rig.workers.open(lambda: [A])
        await turn()
        await rig.advance(29.0)
        assert seen == [A]
        await rig.advance(1.0)
        assert seen == [A, A]
        assert rig.meter.outcomes == ["retry", "retry"]


async def test_a_pool_in_its_back_off_is_looked_at_when_this_process_may_write_again() -> None:
    """An outage of the API server closes the fence, which refuses the work; its end must not wait half a minute."""
    seen: list[PoolKey] = []

    async def work(key: PoolKey) -> Requeue | None:
        seen.append(key)
        raise Unavailable("apply", None, "NotLeader", "another replica may be the leader now", 30.0)

    async with Rig(work) as rig:
        rig.workers.open(lambda: [A])
        await turn()
        assert seen == [A]
        rig.workers.open(lambda: [A])
        await turn()
        assert seen == [A, A]


async def test_a_conflict_is_no_failure_and_news_that_came_meanwhile_are_looked_at_at_once() -> None:
    """After an outage the back-off is long, and the first look often comes before the watch does."""
    seen: list[PoolKey] = []
    outcomes = [Unavailable("x", 503, "", "")] * 6 + [Conflict("x", 409, "Conflict", "modified")]

    async def work(key: PoolKey) -> Requeue | None:
        seen.append(key)
        if outcomes:
            raise outcomes.pop(0)
        return None

    async with Rig(work) as rig:
        rig.workers.open(lambda: [A])
        await turn()
        while len(outcomes) > 1:
            await rig.advance(1.0)
        await rig.advance(60.0)  # the conflict
        looked = len(seen)
        await rig.advance(1.0)
        assert len(seen) == looked + 1


async def test_a_bug_in_one_pool_does_not_stop_the_others() -> None:
    seen: list[PoolKey] = []

    async def work(key: PoolKey) -> Requeue | None:
        seen.append(key)
        if key == A:
            raise ZeroDivisionError
        return None

    async with Rig(work, count=1) as rig:
        rig.workers.open(lambda: [A, B])
        await turn()
        assert seen == [A, B]
        assert sorted(rig.meter.outcomes) == ["bug", "ok"]


async def test_a_refusal_is_retried_with_back_off() -> None:
    seen: list[PoolKey] = []

    async def work(key: PoolKey) -> Requeue | None:
        seen.append(key)
        raise Refused("apply", 403, "Forbidden", "no")

    async with Rig(work) as rig:
        rig.workers.open(lambda: [A])
        await turn()
        for _ in range(100):
            await rig.advance(1.0)
    assert 5 <= len(seen) <= 10


async def test_one_pool_is_never_worked_on_by_two() -> None:
    running, most = 0, 0
    gate = asyncio.Event()

    async def work(_: PoolKey) -> Requeue | None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await gate.wait()
        running -= 1
        return None

    async with Rig(work, count=4) as rig:
        rig.workers.open(lambda: [A])
        await turn()
        for _ in range(5):
            rig.workers.add([A])
            await turn()
        gate.set()
        await turn()
    assert most == 1
