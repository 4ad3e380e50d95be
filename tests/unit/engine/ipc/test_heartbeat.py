"""The heartbeat page decides liveness without the core's help."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvik_engine.ipc.heartbeat import HeartbeatReader, HeartbeatWriter, Phase


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def writer(tmp_path: Path, clock: Clock) -> HeartbeatWriter:
    return HeartbeatWriter(tmp_path / "heartbeat", clock)


@pytest.fixture
def reader(tmp_path: Path) -> HeartbeatReader:
    return HeartbeatReader(tmp_path / "heartbeat")


def test_there_is_no_beat_before_a_core_wrote_one(tmp_path: Path, reader: HeartbeatReader) -> None:
    assert reader.read() is None
    (tmp_path / "heartbeat").touch()
    assert reader.read() is None


def test_a_reader_sees_what_the_core_wrote_last(writer: HeartbeatWriter, reader: HeartbeatReader) -> None:
    writer.beat(Phase.STARTING)
    writer.beat(Phase.READY, step=7, unfinished=3)
    beat = reader.read()
    assert beat is not None
    assert (beat.phase, beat.progress_at) == (Phase.READY, 100.0)


def test_a_core_with_work_that_finishes_no_step_is_stalled(
    writer: HeartbeatWriter, reader: HeartbeatReader, clock: Clock
) -> None:
    writer.beat(Phase.READY, step=7, unfinished=1)
    clock.now += 9
    writer.beat(Phase.READY, step=7, unfinished=1)
    clock.now += 2
    beat = reader.read()
    assert beat is not None
    assert beat.stalled(clock.now)


def test_a_core_whose_steps_are_long_has_more_time(
    writer: HeartbeatWriter, reader: HeartbeatReader, clock: Clock
) -> None:
    """A 3B model on a small CPU computes a full step for a minute: that is slow, not hung."""
    writer.stall_seconds = 120.0
    writer.beat(Phase.READY, step=7, unfinished=1)
    beat = reader.read()
    assert beat is not None
    assert not beat.stalled(clock.now + 119)
    assert beat.stalled(clock.now + 121)


def test_a_core_that_steps_is_not_stalled(writer: HeartbeatWriter, reader: HeartbeatReader, clock: Clock) -> None:
    for step in range(5):
        clock.now += 9
        writer.beat(Phase.READY, step=step, unfinished=1)
    beat = reader.read()
    assert beat is not None
    assert not beat.stalled(clock.now + 9)


def test_an_idle_core_that_stops_beating_is_stalled_too(
    writer: HeartbeatWriter, reader: HeartbeatReader, clock: Clock
) -> None:
    writer.beat(Phase.READY, step=7)
    beat = reader.read()
    assert beat is not None
    assert not beat.stalled(clock.now + 9)
    assert beat.stalled(clock.now + 11)


def test_loading_for_long_is_not_a_stall(writer: HeartbeatWriter, reader: HeartbeatReader, clock: Clock) -> None:
    writer.beat(Phase.STARTING)
    beat = reader.read()
    assert beat is not None
    assert not beat.stalled(clock.now + 600)


def test_work_that_arrives_after_a_long_idle_time_is_not_a_stall(
    writer: HeartbeatWriter, reader: HeartbeatReader, clock: Clock
) -> None:
    writer.beat(Phase.READY, step=7)
    clock.now += 5
    writer.beat(Phase.READY, step=7)
    clock.now += 6
    writer.beat(Phase.READY, step=7, unfinished=1)
    beat = reader.read()
    assert beat is not None
    assert not beat.stalled(clock.now)


def test_a_new_core_takes_over_the_page_of_a_killed_one(
    tmp_path: Path, writer: HeartbeatWriter, reader: HeartbeatReader, clock: Clock
) -> None:
    """A writer killed inside `beat` leaves an odd sequence number."""
    writer.beat(Phase.READY, step=7, unfinished=1)
    with (tmp_path / "heartbeat").open("r+b") as page:
        page.write((5).to_bytes(8, "little"))
    beat = reader.read()
    assert beat is not None
    assert beat.phase is Phase.READY
    HeartbeatWriter(tmp_path / "heartbeat", clock).beat(Phase.STARTING)
    beat = reader.read()
    assert beat is not None
    assert beat.phase is Phase.STARTING
