"""What launch decides when a process ends."""

from __future__ import annotations

import pytest

from kvik_engine.exits import EXIT_START_ERROR
from kvik_engine.supervision import Carry, Finish, Process, RestartCore, Supervision

KILLED = -9


def test_a_dead_core_is_restarted() -> None:
    assert Supervision().ended(Process.CORE, KILLED, 0.0) == RestartCore()


def test_three_deaths_in_five_minutes_end_the_engine() -> None:
    supervision = Supervision()
    assert supervision.ended(Process.CORE, KILLED, 0.0) == RestartCore()
    assert supervision.ended(Process.CORE, 1, 100.0) == RestartCore()
    verdict = supervision.ended(Process.CORE, KILLED, 299.0)
    assert isinstance(verdict, Finish)
    assert verdict.code != 0
    assert verdict.line is not None
    assert verdict.line.startswith("CoreFailed: ")
    assert "signal 9" in verdict.line


def test_deaths_far_apart_are_forgotten() -> None:
    supervision = Supervision()
    for i in range(10):
        assert supervision.ended(Process.CORE, KILLED, 151.0 * i) == RestartCore()


def test_a_core_that_cannot_start_is_not_tried_again() -> None:
    assert Supervision().ended(Process.CORE, EXIT_START_ERROR, 0.0) == Finish(EXIT_START_ERROR)


@pytest.mark.parametrize("status", [KILLED, 1, -11])
def test_a_dead_api_process_ends_the_engine(status: int) -> None:
    verdict = Supervision().ended(Process.API, status, 0.0)
    assert isinstance(verdict, Finish)
    assert verdict.code == 1
    assert verdict.line is not None
    assert verdict.line.startswith("ApiFailed: ")


def test_an_api_process_that_drained_ends_the_engine_well() -> None:
    """Also when nobody sent a signal: kvik drain."""
    assert Supervision().ended(Process.API, 0, 0.0) == Finish(0)


def test_an_api_process_that_cannot_start_passes_its_code_on() -> None:
    assert Supervision().ended(Process.API, EXIT_START_ERROR, 0.0) == Finish(EXIT_START_ERROR)


def test_a_core_that_dies_while_stopping_is_not_restarted() -> None:
    supervision = Supervision()
    supervision.stopping = True
    assert supervision.ended(Process.CORE, KILLED, 0.0) == Carry()


def test_an_engine_told_to_stop_ends_well_only_if_its_api_did() -> None:
    supervision = Supervision()
    supervision.stopping = True
    assert supervision.ended(Process.API, 0, 0.0) == Finish(0)
    assert supervision.ended(Process.API, -15, 0.0) == Finish(0), "it had not begun to listen"
    verdict = supervision.ended(Process.API, KILLED, 0.0)
    assert isinstance(verdict, Finish)
    assert verdict.code == 1, "a drain that was cut is not clean"
