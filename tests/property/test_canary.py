"""No answer ever holds what was in somebody else's prompt.

Each prompt holds a secret of its own. The model tells, token by token, the secret that it reads from its KV, so KV of
another request would show in the answer. Requests share prefixes, fork, are aborted and preempted in a small pool.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from kvik_engine.kv.prefix_hash import BlockHashCache
from kvik_engine.kv.radix import RadixCache
from kvik_engine.params import SamplingParams
from tests.support.engine_harness import Harness
from tests.support.fake_runner import FULL, VOCAB, FakeRunner, Windows, tokens_in

MARK = 1
"""The token before a secret. Secrets and fillers do not hold it."""
LENGTH = 4
BLOCKS, BLOCK_TOKENS, AT_ONCE = 40, 4, 6


def secret_of(number: int) -> list[int]:
    base = VOCAB - 2
    return [number // base**place % base + 2 for place in range(LENGTH)]


def tell(visible: Sequence[Sequence[int]], params: SamplingParams, choice: int, position: int) -> int:
    """The token number `position` of the secret in the KV of the first group, which sees all."""
    tokens = tokens_in(visible[0])
    return tokens[tokens.index(MARK) + 1 + position % LENGTH]


def keep_secrets(
    requests: int, *, overlap: int, index: type[RadixCache] | type[BlockHashCache], windows: Windows
) -> None:
    rng = random.Random(requests)
    runner = FakeRunner(block_tokens=BLOCK_TOKENS, rows=AT_ONCE, windows=windows, answer=tell)
    harness = Harness(
        blocks=BLOCKS * len(windows),
        max_requests=AT_ONCE,
        max_batch_tokens=32,
        index=index,
        overlap=overlap,
        runner=runner,
        windows=windows,
    )
    beginnings = [[rng.randrange(2, VOCAB) for _ in range(length)] for length in (0, 7, 14, 21)]
    aborted = set()
    for number in range(requests):
        filler = [rng.randrange(2, VOCAB) for _ in range(rng.randrange(12))]
        prompt = [*rng.choice(beginnings), MARK, *secret_of(number), *filler]
        n, most = rng.choice([1, 1, 1, 2]), rng.randint(1, 3 * LENGTH)
        harness.submit(number, prompt, n=n, max_tokens=most, slo_class=rng.randrange(3), salt=rng.choice([b"", b"t"]))
        for _ in range(rng.randrange(4)):
            harness.step()
        if rng.random() < 0.2:
            victim = rng.randint(max(0, number - AT_ONCE), number)
            aborted.add(victim)
            harness.abort(victim)
    harness.run()
    for (number, _), heard in harness.heard.items():
        own = secret_of(number) * 3
        assert heard.tokens == own[: len(heard.tokens)], f"request {number} told of another"
        assert heard.error is None
    told = {number for number, _ in harness.heard}
    assert told | aborted == set(range(requests))
    assert harness.scheduler.counters.preemptions > requests / 100
    assert harness.scheduler.counters.prefix_hit_tokens > requests


@pytest.mark.parametrize("overlap", [0, 1], ids=["overlap-0", "overlap-1"])
@pytest.mark.parametrize("windows", [FULL, (None, 6)], ids=["full", "window"])
def test_no_answer_holds_a_foreign_secret(overlap: int, windows: Windows) -> None:
    keep_secrets(250, overlap=overlap, index=RadixCache, windows=windows)


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("overlap", [0, 1], ids=["overlap-0", "overlap-1"])
@pytest.mark.parametrize("index", [RadixCache, BlockHashCache], ids=["radix", "block-hash"])
def test_no_answer_of_thousands_holds_a_foreign_secret(
    overlap: int, index: type[RadixCache] | type[BlockHashCache]
) -> None:
    keep_secrets(5000, overlap=overlap, index=index, windows=FULL)
