"""The board: the last three readings, once warm means expected, and nothing of pods that are gone."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from kvik_operator.autoscale.board import Board
from kvik_operator.autoscale.types import EngineState, LoadReading
from kvik_operator.names import PoolKey, Reason
from kvik_operator.reconcile.types import EngineInfo, ScalingReport

KEY = PoolKey("demo", "chat")
NOW = datetime(2026, 1, 1, tzinfo=UTC)
READING = LoadReading(0.0, EngineState.READY, 0, 10, 3, 2, 0, 0, None, "2026-01-01T00:00:00Z")


def pod(uid: str, *, ready: bool = False, deleting: bool = False) -> dict[str, Any]:
    metadata = {"uid": uid} | ({"deletionTimestamp": "now"} if deleting else {})
    return {"metadata": metadata, "status": {"conditions": [{"type": "Ready", "status": str(ready)}]}}


def board(now: float = 0.0) -> Board:
    return Board(lambda: now)


def test_the_last_three_readings_are_kept_newest_first() -> None:
    b = board()
    for at in range(5):
        b.record({"u": replace(READING, at=float(at))})
    (sample,) = b.samples([pod("u")])
    assert [reading.at for reading in sample.readings] == [4.0, 3.0, 2.0]


def test_a_pod_is_expected_to_answer_once_it_was_warm_or_is_ready() -> None:
    b = board()
    b.record({"warm": READING, "cold": replace(READING, warm_since=None, state=EngineState.STARTING)})
    b.record({"warm": replace(READING, warm_since=None, state=EngineState.STARTING)})
    expected = {sample.uid: sample.expected for sample in b.samples([pod("warm"), pod("cold"), pod("r", ready=True)])}
    assert expected == {"warm": True, "cold": False, "r": True}


def test_pods_that_are_being_deleted_are_no_samples() -> None:
    """knative #807: terminating pods counted as capacity."""
    assert board().samples([pod("u", deleting=True)]) == []


def test_an_evicted_pod_does_not_block_scaling_down() -> None:
    """It stays listed as Failed, without a deletionTimestamp, and never says anything again."""
    b = board()
    b.record({"evicted": READING})
    evicted = pod("evicted") | {"status": {"phase": "Failed"}}
    assert [sample.uid for sample in b.samples([evicted, pod("alive")])] == ["alive"]


def test_work_is_known_only_from_a_fresh_reading() -> None:
    fresh, stale = board(now=10.0), board(now=100.0)
    for b in (fresh, stale):
        b.record({"u": READING})
    assert fresh.work("u") == 5
    assert stale.work("u") is None
    assert fresh.work("unknown") is None


def test_info_is_asked_for_once_per_start_of_the_core() -> None:
    b = board()
    assert b.wants_info("u") is None
    b.record({"u": READING})
    start = b.wants_info("u")
    assert start == READING.warm_since
    b.record_info("u", start, EngineInfo("0.1.0", "m"))
    assert b.wants_info("u") is None
    assert b.info("u") == EngineInfo("0.1.0", "m")
    b.record({"u": replace(READING, warm_since="2026-01-01T01:00:00Z")})
    assert b.wants_info("u") == "2026-01-01T01:00:00Z"


def test_only_what_status_shows_at_once_is_news() -> None:
    b = board()
    report = ScalingReport(True, Reason.SCALING_ON_LOAD, "60 % of full", 3, NOW)
    assert b.report(KEY, "pool", report)
    assert not b.report(KEY, "pool", replace(report, message="61 % of full", last_decision=NOW.replace(minute=1)))
    assert b.report(KEY, "pool", replace(report, desired=4))
    assert b.report(KEY, "pool", None)
    assert not b.report(KEY, "pool", None)
    assert b.scaling(KEY, "pool") is None


def test_what_was_said_of_a_pool_is_not_said_of_another_one_of_its_name() -> None:
    b = board()
    report = ScalingReport(True, Reason.SCALING_ON_LOAD, "60 % of full", 3, NOW)
    b.report(KEY, "pool", report)
    assert b.scaling(KEY, "pool") == report
    assert b.scaling(KEY, "its successor") is None
    assert b.report(KEY, "its successor", report), "it is news of that one"


def test_nothing_is_remembered_of_pods_and_pools_that_are_gone() -> None:
    b = board()
    b.record({"u": READING, "v": READING})
    b.record_info("u", "s", EngineInfo("0.1.0", "m"))
    b.report(KEY, "pool", ScalingReport(True, Reason.SCALING_ON_LOAD, "", 1, NOW))
    b.keep({"v"}, set())
    assert b.latest("u") is None
    assert b.info("u") is None
    assert b.scaling(KEY, "pool") is None
    assert b.latest("v") is not None
