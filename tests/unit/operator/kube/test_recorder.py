"""Equal Events are one Event with a count, and a storm of them is not a storm of writes."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any, cast

from kvik_operator.kube.limiter import TokenBucket
from kvik_operator.kube.recorder import FOLD_WITHIN, RESEND_AFTER, Folder, Recorder, event_object
from kvik_operator.kube.transport import Transport
from kvik_operator.names import PoolKey
from kvik_operator.reconcile.types import PlannedEvent

START = datetime(2026, 1, 1, tzinfo=UTC)
EVENT = PlannedEvent(PoolKey("demo", "chat"), "Warning", "QuotaExceeded", "pods: 1 of 1", "uid-1")


def test_the_first_is_written_and_repeats_are_counted() -> None:
    folder = Folder()
    first = folder.fold(EVENT, START)
    assert first is not None
    assert first.count == 1
    assert folder.fold(EVENT, START + timedelta(seconds=1)) is None
    later = folder.fold(EVENT, START + RESEND_AFTER)
    assert later is not None
    assert (later.name, later.count) == (first.name, 3)


def test_a_thousand_repeats_in_a_minute_are_three_writes() -> None:
    folder = Folder()
    writes = [folder.fold(EVENT, START + timedelta(milliseconds=60 * n)) for n in range(1001)]
    assert sum(write is not None for write in writes) == 3


def test_another_message_or_another_pool_of_that_name_is_another_event() -> None:
    folder = Folder()
    others = [
        EVENT,
        PlannedEvent(EVENT.key, "Warning", EVENT.reason, "pods: 2 of 2", "uid-1"),
        PlannedEvent(EVENT.key, "Warning", EVENT.reason, EVENT.message, "uid-2"),
    ]
    names = {series.name for event in others if (series := folder.fold(event, START)) is not None}
    assert len(names) == 3


def test_an_event_older_than_the_server_keeps_it_starts_anew() -> None:
    folder = Folder()
    first = folder.fold(EVENT, START)
    again = folder.fold(EVENT, START + FOLD_WITHIN + timedelta(seconds=1))
    assert first is not None
    assert again is not None
    assert again.name != first.name
    assert again.count == 1


def test_the_event_points_at_the_pool_so_that_describe_finds_it() -> None:
    series = Folder().fold(EVENT, START)
    assert series is not None
    written = event_object(series, "kvik-operator-0")
    assert written["involvedObject"] == {
        "apiVersion": "kvik.dev/v1alpha1",
        "kind": "InferencePool",
        "namespace": "demo",
        "name": "chat",
        "uid": "uid-1",
    }
    assert written["lastTimestamp"] == "2026-01-01T00:00:00Z"
    assert written["metadata"]["name"].startswith("chat.")


class Leader:
    """Seconds that it surely leads, by how often it was asked."""

    def __init__(self, *seconds: float) -> None:
        self._seconds = list(seconds)

    def seconds_left(self) -> float:
        return self._seconds.pop(0)


async def sent_by(leader: Leader) -> list[dict[str, Any]]:
    """The options of each request made for one Event."""
    sent: list[dict[str, Any]] = []

    class Wire:
        async def request(self, what: str, method: str, path: str, **options: Any) -> Any:
            sent.append(options)

    recorder = Recorder(bucket=TokenBucket(1000, 1000, lambda: 0.0), fence=leader, instance="i", now=lambda: START)
    recorder.emit(EVENT)
    running = asyncio.create_task(recorder.run(cast(Transport, Wire())))
    for _ in range(10):
        await asyncio.sleep(0)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    return sent


async def test_an_event_is_written_only_by_the_leader_and_within_its_time() -> None:
    assert [options["timeout"] for options in await sent_by(Leader(6.0, 5.5))] == [5.5]
    assert await sent_by(Leader(0.0)) == []
    assert await sent_by(Leader(6.0, 0.0)) == [], "the bucket made it wait too long"
