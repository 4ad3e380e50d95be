"""Garbage collections stay out of the steps."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from kvik_engine.core.garbage import collect_between_steps
from tests.support.engine_harness import Harness

ROWS = 256


@pytest.fixture
def collections() -> Iterator[list[str]]:
    """One entry for each collection that started."""
    started: list[str] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            started.append(str(info))

    before = gc.get_threshold()
    gc.callbacks.append(note)
    yield started
    gc.callbacks.remove(note)
    gc.set_threshold(*before)
    gc.unfreeze()


def test_no_collection_starts_within_a_decode_step_of_256_rows(collections: list[str]) -> None:
    harness = Harness(blocks=4 * ROWS, max_requests=ROWS, max_batch_tokens=1024, max_queued_requests=ROWS)
    for request_id in range(ROWS):
        harness.submit(request_id, [1 + request_id % 60], max_tokens=12, stop_token_ids=())
    harness.step()
    collect_between_steps()
    for _ in range(3):
        harness.fake.plans.clear()
        gc.collect(0)
        collections.clear()
        harness.core.step()
        assert not collections
