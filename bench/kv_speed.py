"""What the KV manager's operations take: blocks taken and given back, prefixes found and entered, memory."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable
from itertools import count

from bench.idle_model import BLOCK
from bench.report import Report
from kvik_engine.kv.manager import KVManager
from kvik_engine.kv.prefix_cache import NoPrefixCache, PrefixCache
from kvik_engine.kv.prefix_hash import BlockHashCache
from kvik_engine.kv.radix import RadixCache
from kvik_engine.params import SamplingParams
from kvik_engine.request import Branch, Request
from kvik_engine.step import GroupKind, KVGroup

GROUPS = (KVGroup(GroupKind.FULL, (0,), BLOCK, 1),)
INDEXES: dict[str, Callable[[], PrefixCache]] = {
    "radix": lambda: RadixCache(GROUPS),
    "block-hash": lambda: BlockHashCache(GROUPS),
}
DEFAULT = "radix"
BOUNDS = {"find": 0.5e-3, "enter": 1e-3, "cached": 60e6}
PREFIX = 8000
CACHED_BLOCKS = 100_000
REPEATED = 20

_ids = count()


def branch_of(tokens: list[int]) -> Branch:
    params = SamplingParams(max_tokens=16, seed=0)
    request = Request((0, next(_ids)), tokens, params, slo_class=1, priority=0, salt=b"", arrival=0.0)
    return request.branches[0]


def prompt(number: int, tokens: int) -> list[int]:
    """Prompts of different numbers differ from their first token on."""
    return [(number * 7919 + n * 31) % 50_000 for n in range(tokens)]


def manager(blocks: int, cache: PrefixCache | None = None) -> KVManager:
    return KVManager(GROUPS, blocks, cache or NoPrefixCache(len(GROUPS)), step_tokens=4096)


def take(kv: KVManager, branch: Branch) -> None:
    """What admission and the steps of a prompt do: find, start, get blocks, compute, commit."""
    kv.start(branch, kv.find(branch), 1)
    kv.prepare(branch, len(branch.tokens), 1)
    branch.scheduled = branch.computed = len(branch.tokens)
    kv.commit(branch)


def best(operation: Callable[[], None]) -> float:
    """Processor seconds, the least of a few."""
    seconds = []
    for _ in range(REPEATED):
        before = time.thread_time()
        operation()
        seconds.append(time.thread_time() - before)
    return min(seconds)


def block_seconds(*, pool: int, held: int) -> float:
    """Seconds a block, to take and give back `held` blocks of a pool."""
    kv = manager(pool)
    tokens = prompt(0, held * BLOCK)

    def operation() -> None:
        branch = branch_of(tokens)
        take(kv, branch)
        kv.release(branch)

    return best(operation) / held


def find_seconds(cache: PrefixCache) -> float:
    """To find PREFIX tokens of a prompt that another request left behind."""
    kv = manager(PREFIX // BLOCK + 1, cache)
    first = branch_of([*prompt(1, PREFIX), 1])
    take(kv, first)
    kv.release(first)
    return best_on_new(kv.find, lambda: branch_of([*prompt(1, PREFIX), 1]))


def enter_seconds(cache: PrefixCache) -> float:
    """To enter PREFIX tokens that a branch computed in one step."""
    kv = manager((REPEATED + 1) * (PREFIX // BLOCK), cache)

    def computed() -> Branch:
        branch = branch_of(prompt(next(_ids), PREFIX))
        kv.start(branch, kv.find(branch), 1)
        kv.prepare(branch, PREFIX, 1)
        branch.scheduled = branch.computed = PREFIX
        return branch

    return best_on_new(kv.commit, computed)


def best_on_new(operation: Callable[[Branch], object], make: Callable[[], Branch]) -> float:
    """As `best`, on a new branch each time."""
    seconds = []
    for _ in range(REPEATED):
        branch = make()
        before = time.thread_time()
        operation(branch)
        seconds.append(time.thread_time() - before)
    return min(seconds)


def cached_bytes(make: Callable[[], PrefixCache]) -> int:
    """Python memory of a pool whose CACHED_BLOCKS blocks are all cached, left by prompts of 1,000 tokens."""
    blocks_each = 1000 // BLOCK
    tracemalloc.start()
    kv = manager(CACHED_BLOCKS, make())
    for number in range(-(-CACHED_BLOCKS // blocks_each)):
        branch = branch_of(prompt(number, blocks_each * BLOCK))
        take(kv, branch)
        kv.release(branch)
    assert kv.pool.cached >= CACHED_BLOCKS - blocks_each, "prompts share blocks"
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return used


def report_kv(report: Report) -> None:
    small, large = block_seconds(pool=1_000, held=500), block_seconds(pool=100_000, held=500)
    few = block_seconds(pool=1_000, held=10)
    report.line("take and give back a block, of 500", f"{small * 1e6:.2f} us", small)
    report.line("the same in a pool of 100,000 blocks against 1,000", f"x {large / small:.2f}", large / small, most=1.5)
    report.line("the same of 500 blocks against 10, per block", f"x {small / few:.2f}", small / few, most=1.2)
    for name, make in INDEXES.items():
        found, entered, used = find_seconds(make()), enter_seconds(make()), cached_bytes(make)
        bounds = BOUNDS if name == DEFAULT else {}
        report.line(f"{name}: find {PREFIX} tokens", f"{found * 1e3:.3f} ms", found, most=bounds.get("find"))
        report.line(f"{name}: enter {PREFIX} tokens", f"{entered * 1e3:.3f} ms", entered, most=bounds.get("enter"))
        report.line(f"{name}: {CACHED_BLOCKS} cached blocks", f"{used / 1e6:.1f} MB", used, most=bounds.get("cached"))
