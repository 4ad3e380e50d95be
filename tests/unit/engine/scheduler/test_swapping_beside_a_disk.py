"""Preemption while the disk still fills slots of the swap space with what the preempted request has computed itself."""

from pathlib import Path

import pytest

from kvik_engine.request import Life
from tests.support.engine_harness import API, Harness
from tests.support.held_disk import Damage, HeldDisk


def prompt(number: int, length: int = 24) -> list[int]:
    return [(number * 17 + i * 5) % 62 + 1 for i in range(length)]


def disk_of(harness: Harness) -> HeldDisk:
    assert harness.disk is not None
    return harness.disk


def with_prompts_on_disk(directory: Path, **settings: object) -> Harness:
    """An engine that starts on what another one left: the blocks of prompts 0 to 3."""
    before = Harness(blocks=12, swap_slots=12, disk_cache=directory)
    for number in range(6):
        before.submit(number, prompt(number), max_tokens=1)
        before.run()
        disk_of(before).go_on(100)
    disk_of(before).end()
    defaults: dict[str, object] = {"blocks": 56, "swap_slots": 18, "chunked_prefill_tokens": 8, "max_batch_tokens": 16}
    return Harness(disk_cache=directory, **{**defaults, **settings})  # type: ignore[arg-type]


def swapped_while_the_disk_reads_the_same(directory: Path, *, n: int, overlap: int) -> Harness:
    """Request 9 computes a prompt, since no slot is left to read it into; request 10 has the end of the same prompt
    read a moment later; request 11 takes the rows and blocks of both."""
    harness = with_prompts_on_disk(directory, overlap=overlap)
    assert harness.host is not None
    harness.submit(8, prompt(40, 4), slo_class=0, max_tokens=60, min_tokens=60)
    for number in (1, 2, 3):
        harness.submit(number, [*prompt(number), 7], max_tokens=1)
    harness.step()
    for number in (1, 2, 3):
        harness.abort(number)
    harness.submit(9, [*prompt(0), *prompt(20, 8)], slo_class=2, n=n, max_tokens=8, min_tokens=8)
    harness.step()
    assert harness.host.pool.available == 0
    disk_of(harness).go_on(18)
    harness.step()
    harness.submit(10, [*prompt(0), 9], max_tokens=4, min_tokens=4)
    for _ in range(5):
        harness.step()
    assert harness.core._requests[API, 10].branches[0].life is Life.LOADING
    assert len(disk_of(harness).waiting) > 0
    harness.submit(11, prompt(30, 176), slo_class=0, max_tokens=4, min_tokens=4)
    for _ in range(3):
        harness.step()
    assert harness.scheduler.counters.swaps == 1
    return harness


@pytest.mark.parametrize("overlap", [0, 1])
@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("damage", [None, Damage.CHANGED])
def test_a_request_is_swapped_out_apart_from_what_the_disk_still_reads(
    damage: Damage | None, n: int, overlap: int, tmp_path: Path
) -> None:
    harness = swapped_while_the_disk_reads_the_same(tmp_path, n=n, overlap=overlap)
    if damage is not None:
        disk_of(harness).damage(damage, every=1)
        disk_of(harness).go_on(100)
    for _ in range(60):
        harness.step()  # request 9 comes back, whether the disk has gone on or not
    disk_of(harness).go_on(100)
    harness.run()

    for request_id in (8, 9, 10, 11):
        harness.assert_solo(request_id)
