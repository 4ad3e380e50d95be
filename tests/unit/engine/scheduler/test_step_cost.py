"""What a step costs grows with what runs in it, not with what waits. Calls are counted, so that no clock decides."""

from __future__ import annotations

import sys
from types import FrameType

import pytest

from tests.support.engine_harness import Harness


class Calls:
    """Counts Python and C calls while it is entered."""

    def __init__(self) -> None:
        self.count = 0

    def __enter__(self) -> Calls:
        self._before = sys.getprofile()
        sys.setprofile(self._note)
        return self

    def __exit__(self, *error: object) -> None:
        sys.setprofile(self._before)

    def _note(self, frame: FrameType, event: str, argument: object) -> None:
        self.count += event in ("call", "c_call")


def calls_of_a_step(waiting: int, tenants: int, *, rows: int, prompt: int = 40) -> float:
    """The mean of ten steps in which 16 requests decode."""
    harness = Harness(blocks=400, max_requests=rows, max_batch_tokens=64, max_queued_requests=10_000)
    for request_id in range(16):
        harness.submit(request_id, [1 + request_id, 2, 3], max_tokens=60, stop_token_ids=())
    harness.step()
    for request_id in range(waiting):
        tenant = f"tenant {request_id % tenants}"
        harness.submit(100 + request_id, [1 + request_id % 60] * prompt, max_tokens=8, tenant=tenant)
    harness.step()
    assert len(harness.scheduler.waiting) == waiting
    with Calls() as calls:
        for _ in range(10):
            harness.core.step()
    return calls.count / 10


@pytest.mark.parametrize("tenants", [1, 100], ids=["one-tenant", "100-tenants"])
def test_1_000_waiting_requests_do_not_slow_a_step_by_more_than_a_fifth(tenants: int) -> None:
    alone = calls_of_a_step(0, 1, rows=16)
    assert calls_of_a_step(1_000, tenants, rows=16) < 1.2 * alone


def test_a_request_that_finds_no_room_costs_the_same_however_many_wait_behind_it() -> None:
    one = calls_of_a_step(1, 1, rows=32, prompt=1500)
    assert calls_of_a_step(1_000, 10, rows=32, prompt=1500) < 1.2 * one
