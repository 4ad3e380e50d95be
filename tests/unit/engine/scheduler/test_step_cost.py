"""What a step costs grows with what runs in it, not with what waits. Calls are counted, so that no clock decides."""

from __future__ import annotations

import pytest

from tests.support.calls import Calls
from tests.support.engine_harness import Harness


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


def calls_beside_a_stuck_request(rows: int, prompt: int) -> tuple[float, float]:
    """The mean of three steps of batch rows, without and with a waiting interactive request that all cannot help."""
    blocks = 3 * rows * (prompt // 4 + 4)
    chunk = {"max_batch_tokens": 1 << 14, "chunked_prefill_tokens": 1 << 14}
    harness = Harness(blocks=blocks, max_requests=rows + 4, context=1 << 16, **chunk)  # type: ignore[arg-type]
    endless = {"max_tokens": 100, "stop_token_ids": ()}
    for request_id in range(rows):
        own = [1 + (request_id >> bit & 1) for bit in range(8)]
        harness.submit(request_id, [*own, *[9] * (prompt - 8)], slo_class=2, **endless)  # type: ignore[arg-type]
    harness.submit(900, [3] * (blocks // 2 * 4), slo_class=0, **endless)  # type: ignore[arg-type]
    for _ in range(4):
        harness.step()
    assert len(harness.scheduler.running) == rows + 1
    counted = []
    for stuck in (0, 1):
        for _ in range(stuck):
            harness.submit(901, [4] * (blocks // 2 * 4), slo_class=0, max_tokens=1)
            harness.step()
        with Calls() as calls:
            for _ in range(3):
                harness.core.step()
        counted.append(calls.count / 3)
        assert len(harness.scheduler.waiting) == stuck
    assert harness.scheduler.counters.preemptions == 0
    return counted[0], counted[1]


def test_a_stuck_interactive_request_makes_no_step_dearer() -> None:
    """What the batch rows hold was counted block by block for 1, 2, … of them: half a second a step for 128 rows."""
    alone, stuck = calls_beside_a_stuck_request(rows=32, prompt=128)
    assert stuck < 1.2 * alone
