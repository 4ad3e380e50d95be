"""Prefix cache x preemption x fork or beams x abort x chunk size x window x overlap (and swap, for beams; and swap with
a disk below it, for both): in every combination, tokens equal an undisturbed run alone. Freed blocks are poisoned and
the books are checked after each step (harness)."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest

from kvik_engine.kv.prefix_hash import BlockHashCache
from kvik_engine.kv.radix import RadixCache
from kvik_engine.params import BeamParams
from kvik_engine.scheduler.swap_or_recompute import PreemptionMode
from tests.support.engine_harness import Harness
from tests.support.fake_runner import FULL, VOCAB, Windows

SYSTEM = [(11 * i) % (VOCAB - 1) + 1 for i in range(14)]
WINDOWED: Windows = (None, 6)
WITHIN: Windows = (None, 3)
"""A window smaller than a block."""
INDICES = {"radix": RadixCache, "block hash": BlockHashCache, "no cache": None}


def in_every_engine(test: Callable[..., None]) -> Callable[..., None]:
    """With each index of prefixes, with and without overlap, with and without a sliding window."""
    for mark in (
        pytest.mark.parametrize("index", INDICES.values(), ids=INDICES),
        pytest.mark.parametrize("overlap", [0, 1], ids=["overlap-0", "overlap-1"]),
        pytest.mark.parametrize("windows", [FULL, WINDOWED], ids=["full", "window"]),
    ):
        test = mark(test)
    return test


def prompt_of(request_id: int) -> list[int]:
    """Prompts share a beginning that ends within a block; every third goes on as the one three before did."""
    own = [(7 * (request_id % 3) + 5 * i) % (VOCAB - 1) + 1 for i in range(3 + 4 * (request_id % 3))]
    return [*SYSTEM[: 14 - request_id % 2], *own, *([request_id + 1] if request_id > 2 else [])]


@in_every_engine
def test_tokens_equal_an_undisturbed_run_in_every_combination(
    index: type[RadixCache] | type[BlockHashCache] | None, overlap: int, windows: Windows
) -> None:
    small = 17 if windows == FULL else 48
    preempted = found = forked = aborted = 0
    for blocks, chunk, n, abort in product((small, 128), (1, 5, 32), (1, 3), ("nothing", "a choice", "a request")):
        harness = Harness(
            blocks=blocks,
            max_requests=6,
            chunked_prefill_tokens=chunk,
            max_batch_tokens=32,
            prefix_cache=index is not None,
            index=index or RadixCache,
            overlap=overlap,
            windows=windows,
        )
        run(harness, n=n, abort=abort)
        preempted += harness.scheduler.counters.preemptions
        found += harness.scheduler.counters.prefix_hit_tokens
        forked += sum(len(plan.forks) for plan in harness.fake.plans)
        aborted += abort != "nothing"
    assert preempted
    assert forked
    assert aborted
    assert bool(found) == (index is not None)


@in_every_engine
def test_beams_find_what_an_undisturbed_search_does_in_every_combination(
    index: type[RadixCache] | type[BlockHashCache] | None, overlap: int, windows: Windows
) -> None:
    small = 17 if windows == FULL else 48
    preempted = swapped = found = split = 0
    swaps = (PreemptionMode.SWAP, PreemptionMode.RECOMPUTE)
    for blocks, chunk, mode, abort in product((small, 128), (1, 32), swaps, ("nothing", "a request")):
        harness = Harness(
            blocks=blocks,
            max_requests=6,
            chunked_prefill_tokens=chunk,
            max_batch_tokens=32,
            prefix_cache=index is not None,
            index=index or RadixCache,
            swap_slots=64,
            preemption_mode=mode,
            overlap=overlap,
            windows=windows,
        )
        run(harness, n=3, abort=abort, beam=BeamParams())
        preempted += harness.scheduler.counters.preemptions
        swapped += harness.scheduler.counters.swaps
        found += harness.scheduler.counters.prefix_hit_tokens
        split += sum(len(plan.splits) for plan in harness.fake.plans)
    assert preempted > swapped > 0
    assert split
    assert bool(found) == (index is not None)


@pytest.mark.parametrize("index", [RadixCache, BlockHashCache], ids=["radix", "block hash"])
@pytest.mark.parametrize("overlap", [0, 1], ids=["overlap-0", "overlap-1"])
@pytest.mark.parametrize("windows", [FULL, WITHIN], ids=["full", "window within a block"])
@pytest.mark.parametrize("beam", [None, BeamParams()], ids=["choices", "beams"])
def test_choices_and_beams_are_the_same_with_swap_and_disk_below_in_every_combination(
    beam: BeamParams | None,
    windows: Windows,
    overlap: int,
    index: type[RadixCache] | type[BlockHashCache],
    tmp_path: Path,
) -> None:
    """Each engine starts on what the one before left on the disk, and leaves more."""
    small = 17 if windows == FULL else 48
    swapped = spread = read = 0
    aborts = ("nothing", "a choice", "a request") if beam is None else ("nothing", "a request")
    for blocks, abort in product((small, 128), aborts):
        harness = Harness(
            blocks=blocks,
            max_requests=6,
            chunked_prefill_tokens=5,
            max_batch_tokens=32,
            index=index,
            swap_slots=24 * len(windows),
            disk_cache=tmp_path,
            overlap=overlap,
            windows=windows,
        )
        run(harness, n=3, abort=abort, beam=beam)
        assert harness.disk is not None
        swapped += harness.scheduler.counters.swaps
        read += harness.disk.tier.use.read
        spread += sum(len(plan.splits if beam else plan.forks) for plan in harness.fake.plans)
        harness.disk.end()
    assert swapped
    assert spread
    assert read


def run(harness: Harness, *, n: int, abort: str, beam: BeamParams | None = None) -> None:
    spared = []
    for request_id in range(8):
        harness.submit(
            request_id,
            prompt_of(request_id),
            n=n if request_id % 2 else 1,
            beam=beam if request_id % 2 else None,
            max_tokens=4 + 3 * (request_id % 4),
            temperature=1.0,
            slo_class=2 - request_id % 3,
            stop_token_ids=(),
        )
        for _ in range(1 + request_id % 3):
            step(harness)
        if request_id % 4 == 1 and abort != "nothing":
            harness.abort(request_id, choice=0 if abort == "a choice" else None, accepted_tokens=request_id % 3)
        else:
            spared.append(request_id)
    while harness.core.busy or harness.channel.inbox:
        step(harness)
    harness.core.check_idle()
    for request_id in spared:
        harness.assert_solo(request_id)


def step(harness: Harness) -> None:
    """The disk ends a job each step, where there is one."""
    busy = harness.core.busy
    happened = harness.step()
    waits = harness.disk is not None and bool(harness.disk.waiting)
    assert happened or waits or not busy, "the engine stands still with work to do"
    if harness.disk is not None:
        harness.disk.go_on(1)
