"""Which cached blocks should go first: share of prompt tokens found in the prefix cache under traces of chats.

    python -m bench.eviction

The real KV manager and radix cache serve a seeded trace without computing anything: long system prompts of Zipf-like
popularity with chats of several turns under them, and floods of short prompts that nobody repeats. Used for
docs/decisions/0034; one JSON line a policy and trace.
"""

from __future__ import annotations

import json
import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from kvik_engine.kv.eviction import SegmentedLru
from kvik_engine.kv.manager import KVManager
from kvik_engine.kv.radix import RadixCache
from kvik_engine.params import SamplingParams
from kvik_engine.request import Request
from kvik_engine.step import GroupKind, KVGroup, Row

BLOCK_TOKENS, BLOCKS, AT_ONCE, REQUESTS = 16, 2000, 8, 6000
VOCAB = 50_000


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests come at random: a new one-off prompt, or the next turn of a chat under one of the system prompts."""

    name: str
    one_offs: float
    """Share of requests that are one-offs."""
    burst: int
    """One-offs come so many in a row."""
    systems: int
    system_tokens: int
    turns: int


TRACES = (
    Trace("no one-offs", one_offs=0.0, burst=1, systems=8, system_tokens=1024, turns=5),
    Trace("half one-offs", one_offs=0.5, burst=1, systems=8, system_tokens=1024, turns=5),
    Trace("floods of 100", one_offs=0.7, burst=100, systems=8, system_tokens=1024, turns=5),
    Trace("many prefixes", one_offs=0.5, burst=20, systems=40, system_tokens=1024, turns=1),
    Trace("chats only", one_offs=0.0, burst=1, systems=1, system_tokens=64, turns=8),
)


def main() -> None:
    for trace in TRACES:
        for name, share in (("LRU", 0.0), ("segmented 0.5", 0.5), ("segmented 0.8", 0.8)):
            found, asked = serve(trace, share)
            print(json.dumps({"trace": trace.name, "policy": name, "hit_rate": round(found / asked, 4)}), flush=True)


def serve(trace: Trace, protected_share: float) -> tuple[int, int]:
    """Prompt tokens found and asked for. AT_ONCE requests hold their blocks at once."""
    groups = (KVGroup(GroupKind.FULL, (0,), BLOCK_TOKENS, 1),)
    kv = KVManager(groups, BLOCKS, RadixCache(groups), step_tokens=1)
    kv.pool._cached = SegmentedLru(BLOCKS, protected_share)
    running: deque[Request] = deque()
    found = asked = 0
    for number, (prompt, answer) in enumerate(prompts(trace, random.Random(7)), start=1):
        request = Request((1, number), prompt, SamplingParams(max_tokens=len(answer) + 1, seed=0), 1, 0, b"", 0.0)
        branch = request.branches[0]
        while len(running) >= AT_ONCE or kv.needed([len(prompt) + len(answer)]) > kv.pool.available:
            kv.release(running.popleft().branches[0])
        hit = kv.find(branch)
        kv.start(branch, hit, number)
        found, asked = found + hit.tokens, asked + len(prompt)
        branch.row = Row(0)
        branch.start(len(prompt), computed=hit.tokens, scheduled=hit.tokens)
        branch.tokens.extend(answer)
        kv.prepare(branch, len(branch.tokens), number)
        branch.plan(len(branch.tokens), number, samples=False)
        branch.settle(len(branch.tokens))
        kv.commit(branch)
        kv.settle(number)
        running.append(request)
    return found, asked


def prompts(trace: Trace, rng: random.Random) -> Iterator[tuple[list[int], list[int]]]:
    """Prompt and answer of each request."""
    systems = [words(rng, trace.system_tokens) for _ in range(trace.systems)]
    weights = [1 / (rank + 1) for rank in range(trace.systems)]
    chats: list[tuple[int, list[int]]] = []
    served = 0
    while served < REQUESTS:
        if rng.random() < trace.one_offs / (trace.one_offs + trace.burst * (1 - trace.one_offs)):
            for _ in range(trace.burst):
                yield words(rng, rng.randint(50, 400)), words(rng, rng.randint(20, 200))
            served += trace.burst
            continue
        served += 1
        if len(chats) < 20:
            chats.append((0, list(rng.choices(systems, weights)[0])))
        turn, tokens = chats.pop(rng.randrange(len(chats)))
        tokens = [*tokens, *words(rng, rng.randint(10, 100))]
        answer = words(rng, rng.randint(20, 200))
        yield tokens, answer
        if turn + 1 < trace.turns:
            chats.append((turn + 1, [*tokens, *answer, 1]))


def words(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(VOCAB) for _ in range(count)]


if __name__ == "__main__":
    main()
