"""Prefix cache x preemption x fork or beams x abort x chunk size x window x overlap (and swap, for beams): in every
combination, tokens equal an undisturbed run alone. Freed blocks are poisoned and the books are checked after each step
(harness)."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest

from kvik_engine.kv.prefix_hash import BlockHashCache
from kvik_engine.kv.radix import RadixCache
from kvik_engine.params import BeamParams
from kvik_engine.scheduler.swap_or_recompute import PreemptionMode
from tests.support.engine_harness import Harness
from tests.support.fake_runner import FULL, VOCAB, Windows

SYSTEM = [(11 * i) % (VOCAB - 1) + 1 for i in range(14)]
WINDOWED: Windows = (None, 6)
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
            harness.step()
        if request_id % 4 == 1 and abort != "nothing":
            harness.abort(request_id, choice=0 if abort == "a choice" else None, accepted_tokens=request_id % 3)
        else:
            spared.append(request_id)
    harness.run()
    for request_id in spared:
        harness.assert_solo(request_id)
