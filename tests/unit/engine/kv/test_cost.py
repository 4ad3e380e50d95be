"""What the radix cache costs: memory in bytes, time only as a multiple of the plainest loop over the same blocks."""

from __future__ import annotations

import gc
import time
import tracemalloc
from collections.abc import Callable

from kvik_engine.kv.manager import KVManager
from kvik_engine.kv.radix import RadixCache
from kvik_engine.kv.token_tree import pack
from kvik_engine.params import SamplingParams
from kvik_engine.request import Branch, Request
from kvik_engine.step import GroupKind, KVGroup, Row

BLOCK = 16
LONG = 8000


def make_kv(blocks: int) -> KVManager:
    groups = (KVGroup(GroupKind.FULL, (0,), BLOCK, 64),)
    return KVManager(groups, blocks, RadixCache(groups), step_tokens=LONG)


def computed(kv: KVManager, tokens: list[int], step: int) -> Branch:
    """A branch all of whose tokens but one are computed and not yet in the cache."""
    branch = Request((1, step), tokens, SamplingParams(max_tokens=1, seed=0), 1, 0, b"", 0.0).branches[0]
    kv.start(branch, kv.find(branch), step)
    branch.row = Row(0)
    branch.start(len(tokens), computed=0, scheduled=0)
    upto = len(tokens) // BLOCK * BLOCK
    kv.prepare(branch, upto, step)
    branch.plan(upto, step, samples=False)
    branch.settle(upto)
    kv.settle(step)
    return branch


def quickest(act: Callable[[], object], tries: int = 20) -> float:
    """Without collections, in which what other tests have left is walked, too."""
    times = []
    gc.disable()
    try:
        for _ in range(tries):
            started = time.perf_counter()
            act()
            times.append(time.perf_counter() - started)
    finally:
        gc.enable()
    return min(times)


def test_4000_cached_blocks_cost_less_than_600_bytes_each() -> None:
    """60 MB for 100,000."""
    blocks, length = 4000, 50 * BLOCK
    tracemalloc.start()
    kv = make_kv(blocks)
    for number in range(blocks * BLOCK // length):
        # Many different prompts under one root: the shape with the longest lists of siblings.
        branch = computed(kv, [(number * 7919 + i * 31) % 50_000 for i in range(length)], number + 1)
        kv.commit(branch)
        kv.release(branch)
        branch.request.branches.clear()
    del branch
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kv.pool.cached == blocks
    assert size / blocks < 600


def test_matching_and_inserting_a_long_prompt_cost_little_more_than_packing_its_tokens() -> None:
    tokens = [i * 7 % 50_000 for i in range(LONG)]

    def packing() -> None:
        for start in range(0, LONG, BLOCK):
            pack(tokens[start : start + BLOCK])

    def inserted() -> float:
        kv = make_kv(LONG // BLOCK + 1)
        branch = computed(kv, tokens, 1)
        return quickest(lambda: kv.commit(branch), tries=1)

    kv = make_kv(LONG // BLOCK + 1)
    branch = computed(kv, tokens, 1)
    kv.commit(branch)

    def match() -> None:
        branch.trail.clear()
        assert kv.find(branch).tokens == LONG - 1

    unit = quickest(packing)
    assert quickest(match) < 5 * unit
    assert min(inserted() for _ in range(20)) < 10 * unit


def test_a_request_that_waits_is_not_walked_anew() -> None:
    tokens = [i * 7 % 50_000 for i in range(LONG)]
    kv = make_kv(LONG // BLOCK + 1)
    kv.commit(computed(kv, tokens, 1))
    waiting = Request((1, 2), [*tokens, 1], SamplingParams(max_tokens=1, seed=0), 1, 0, b"", 0.0).branches[0]

    def anew() -> None:
        waiting.trail.clear()
        kv.find(waiting)

    assert quickest(lambda: kv.find(waiting)) < 0.7 * quickest(anew)
