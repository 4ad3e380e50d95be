"""The engine core under random use. What must hold is in tests/support/engine_machine and disk_machine."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.support.disk_machine import DiskEngineMachine, OverlappedDiskEngineMachine
from tests.support.engine_machine import EngineMachine, OverlappedEngineMachine

_MACHINES = pytest.mark.parametrize("machine", [EngineMachine, OverlappedEngineMachine], ids=["overlap-0", "overlap-1"])
_WITH_DISK = pytest.mark.parametrize(
    "machine", [DiskEngineMachine, OverlappedDiskEngineMachine], ids=["overlap-0", "overlap-1"]
)
_CHECKS = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
_FEW = settings(
    max_examples=100, stateful_step_count=40, deadline=None, derandomize=True, suppress_health_check=_CHECKS
)
_MANY = settings(max_examples=3000, stateful_step_count=80, deadline=None, suppress_health_check=_CHECKS)


@_MACHINES
def test_requests_finish_with_their_own_tokens_and_no_block_is_lost(machine: type[EngineMachine]) -> None:
    run_state_machine_as_test(machine, settings=_FEW)


@_WITH_DISK
def test_a_disk_may_fail_fill_up_and_lie_and_no_token_changes(machine: type[DiskEngineMachine]) -> None:
    machine.read = machine.failed = 0
    run_state_machine_as_test(machine, settings=_FEW)
    assert machine.read > 0, "the disk was not used"
    assert machine.failed > 0, "the disk never failed"


@pytest.mark.long
@pytest.mark.timeout(1200)
@_MACHINES
def test_requests_finish_with_their_own_tokens_over_many_more_runs(machine: type[EngineMachine]) -> None:
    run_state_machine_as_test(machine, settings=_MANY)


@pytest.mark.long
@pytest.mark.timeout(1200)
@_WITH_DISK
def test_no_token_changes_over_many_more_faults_of_a_disk(machine: type[DiskEngineMachine]) -> None:
    run_state_machine_as_test(machine, settings=settings(_MANY, max_examples=1000))
