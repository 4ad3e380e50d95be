"""What counts as being alive, and what does not."""

import asyncio

from kvik_operator.watch.heartbeat import Heartbeat, Limits, Vitals, problems

LIMITS = Limits()


def vitals(
    *,
    beats: dict[str, float] | None = None,
    stuck_for: float = 0.0,
    deaf_since: float | None = None,
    feed_down_since: float | None = None,
    listed_at: float | None = 1000.0,
) -> Vitals:
    return Vitals({"reconcile": 1000.0} if beats is None else beats, stuck_for, deaf_since, feed_down_since, listed_at)


def test_an_operator_that_does_its_work_is_alive() -> None:
    assert problems(vitals(), LIMITS, 1000.0) == ()


def test_a_handler_that_blocks_its_loop_fails_the_probe() -> None:
    """dask-kubernetes #620: locked up, with a green health endpoint."""
    assert problems(vitals(), LIMITS, 1030.0) == ()
    (problem,) = problems(vitals(), LIMITS, 1031.0)
    assert problem == "loop reconcile has not turned over for 31 s"


def test_a_pool_that_nobody_comes_to_fails_the_probe() -> None:
    assert problems(vitals(stuck_for=121.0), LIMITS, 1000.0) == ("there is work, and none was finished for 121 s",)


def test_a_deaf_watch_fails_the_probe() -> None:
    (problem,) = problems(vitals(deaf_since=999.0), LIMITS, 1000.0)
    assert "deaf" in problem


def test_watches_that_do_not_run_fail_the_probe_only_while_the_server_answers() -> None:
    """An absent API server is not cured by a restart."""
    now = 2000.0
    down = vitals(beats={}, feed_down_since=now - 121, listed_at=now - 10)
    assert len(problems(down, LIMITS, now)) == 1
    unreachable = vitals(beats={}, feed_down_since=now - 121, listed_at=now - 500)
    assert problems(unreachable, LIMITS, now) == ()
    never = vitals(beats={}, feed_down_since=now - 121, listed_at=None)
    assert problems(never, LIMITS, now) == ()


async def test_a_loop_that_ended_on_purpose_does_not_lag() -> None:
    now = 0.0
    heartbeat = Heartbeat(
        limits=LIMITS,
        stuck_for=lambda: 0.0,
        deaf_since=lambda: None,
        listed_at=lambda: None,
        clock=lambda: now,
    )
    beat = asyncio.create_task(heartbeat.beat("watch"))
    await asyncio.sleep(0)
    now = 31.0
    assert len(heartbeat.problems()) == 1
    beat.cancel()
    await asyncio.gather(beat, return_exceptions=True)
    assert heartbeat.problems() == ()


def test_readiness_means_that_something_is_watched() -> None:
    heartbeat = Heartbeat(limits=LIMITS, stuck_for=lambda: 0.0, deaf_since=lambda: None, listed_at=lambda: None)
    assert heartbeat.not_ready() == ("nothing is watched yet",)
    heartbeat.feed_started()
    assert heartbeat.not_ready() == ()
    heartbeat.feed_stopped()
    assert heartbeat.not_ready() != ()


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def heartbeat_of(clock: Clock) -> Heartbeat:
    """Of an operator whose API server answers every LIST."""
    return Heartbeat(
        limits=LIMITS, stuck_for=lambda: 0.0, deaf_since=lambda: None, listed_at=lambda: clock.now, clock=clock
    )


def test_an_operator_that_waits_for_its_api_is_alive_and_not_ready() -> None:
    """Whoever installs the operator before the CRD finds it waiting, not in a crash loop."""
    clock = Clock()
    heartbeat = heartbeat_of(clock)
    clock.now = 2.0
    heartbeat.api_awaited()
    clock.now = 3600.0
    assert heartbeat.problems() == ()
    assert not heartbeat.watches_expected()
    assert heartbeat.not_ready() == ("the API inferencepools.kvik.dev is not served yet",)


def test_watches_that_do_not_start_once_the_api_is_served_fail_the_probe() -> None:
    clock = Clock()
    heartbeat = heartbeat_of(clock)
    heartbeat.api_awaited()
    clock.now = 3600.0
    heartbeat.api_served()
    assert heartbeat.watches_expected()
    assert heartbeat.not_ready() == ("nothing is watched yet",)
    clock.now += LIMITS.feed_down
    assert heartbeat.problems() == ()
    clock.now += 1.0
    assert len(heartbeat.problems()) == 1


def test_an_api_that_is_taken_away_is_awaited_again() -> None:
    clock = Clock()
    heartbeat = heartbeat_of(clock)
    heartbeat.api_served()
    heartbeat.feed_started()
    assert heartbeat.not_ready() == ()
    heartbeat.feed_stopped()
    heartbeat.api_awaited()
    clock.now = 3600.0
    assert heartbeat.problems() == ()
    assert heartbeat.not_ready() != ()
