"""No answer ever holds what was in somebody else's prompt.

Each prompt holds a secret of its own. The model tells, token by token, the secret that it reads from its KV, so KV of
another request would show in the answer. Requests share prefixes, fork, search by beams, are aborted and
preempted in a small pool, and swapped out and back where there is swap space, with a disk below it.

KV that nobody may read holds a canary: free blocks and slots, slots that the disk has not filled yet (harness), and
what lies in a row's blocks behind what it has computed (fake runner). Reading one fails, whoever does.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from kvik_engine.kv.prefix_hash import BlockHashCache
from kvik_engine.kv.radix import RadixCache
from kvik_engine.params import BeamParams, SamplingParams
from tests.support.engine_harness import Harness
from tests.support.fake_runner import FULL, VOCAB, FakeRunner, Windows, tokens_in

MARK = 1
"""The token before a secret. Secrets and fillers do not hold it."""
LENGTH = 4
BLOCKS, BLOCK_TOKENS, AT_ONCE = 40, 4, 6
Index = type[RadixCache] | type[BlockHashCache]


def secret_of(number: int) -> list[int]:
    base = VOCAB - 2
    return [number // base**place % base + 2 for place in range(LENGTH)]


def tell(visible: Sequence[Sequence[int]], params: SamplingParams, choice: int, position: int) -> int:
    """The token number `position` of the secret in the KV of the first group, which sees all."""
    tokens = tokens_in(visible[0])
    return tokens[tokens.index(MARK) + 1 + position % LENGTH]


def tell_likely(visible: Sequence[Sequence[int]], position: int) -> list[float]:
    """The same token, as by far the likeliest."""
    right = tell(visible, SamplingParams(max_tokens=1, seed=0), 0, position)
    return [-0.01 if token == right else -20.0 - token / VOCAB for token in range(VOCAB)]


@dataclass(frozen=True)
class Below:
    """What KV goes to that has no room on the device. `disk` is a folder."""

    swap_slots: int = 0
    disk: Path | None = None


NOTHING = Below()


def engine(*, requests: int, overlap: int, index: Index, windows: Windows, below: Below) -> Harness:
    return Harness(
        blocks=BLOCKS * len(windows),
        max_requests=AT_ONCE,
        max_queued_requests=requests,
        max_batch_tokens=32,
        index=index,
        swap_slots=below.swap_slots * len(windows),
        disk_cache=below.disk,
        overlap=overlap,
        runner=FakeRunner(block_tokens=BLOCK_TOKENS, rows=AT_ONCE, windows=windows, answer=tell, likely=tell_likely),
        windows=windows,
    )


def keep_secrets(
    requests: int, *, overlap: int, index: Index, windows: Windows, below: Below = NOTHING, shared: int = 4
) -> Harness:
    """`shared`: how many beginnings the prompts have. More than fit into the pool drive each other out of it."""
    rng = random.Random(requests)
    harness = engine(requests=requests, overlap=overlap, index=index, windows=windows, below=below)
    beginnings = [[rng.randrange(2, VOCAB) for _ in range(7 * (number % 4))] for number in range(shared)]
    aborted, searches = set[int](), set[int]()

    def step() -> None:
        harness.step()
        if harness.disk is not None:
            harness.disk.go_on(rng.randrange(3))

    for number in range(requests):
        filler = [rng.randrange(2, VOCAB) for _ in range(rng.randrange(12))]
        prompt = [*rng.choice(beginnings), MARK, *secret_of(number), *filler]
        n, most = rng.choice([1, 1, 1, 2]), rng.randint(1, 3 * LENGTH)
        beam = rng.choice([None, None, BeamParams()])
        if beam is not None:
            searches.add(number)
        salt = rng.choice([b"", b"t"])
        harness.submit(number, prompt, n=n, beam=beam, max_tokens=most, slo_class=rng.randrange(3), salt=salt)
        for _ in range(rng.randrange(4)):
            step()
        if rng.random() < 0.2:
            victim = rng.randint(max(0, number - AT_ONCE), number)
            aborted.add(victim)
            harness.abort(victim)
    while harness.core.busy or harness.channel.inbox:
        step()
    harness.core.check_idle()
    for (number, choice), heard in harness.heard.items():
        if number in searches and choice:
            continue  # only the best answer of a search is what the model would say
        own = secret_of(number) * 3
        assert heard.tokens == own[: len(heard.tokens)], f"request {number} told of another"
        assert heard.error is None
    told = {number for number, _ in harness.heard}
    assert told | aborted == set(range(requests))
    assert harness.scheduler.counters.preemptions > requests / 100
    assert harness.scheduler.counters.prefix_hit_tokens > 4 * requests / shared
    return harness


def keep_secrets_below(requests: int, *, overlap: int, index: Index, windows: Windows, disk: Path) -> None:
    """Swapping by all means, and more beginnings than the pool and the swap space hold."""
    below = Below(swap_slots=20, disk=disk)
    harness = keep_secrets(requests, overlap=overlap, index=index, windows=windows, below=below, shared=24)
    use = harness.scheduler.offload.use
    assert harness.scheduler.counters.swaps > requests / 100
    assert use.swapped_in > requests / 10
    assert use.disk.read > 0


@pytest.mark.parametrize("overlap", [0, 1], ids=["overlap-0", "overlap-1"])
@pytest.mark.parametrize("windows", [FULL, (None, 6)], ids=["full", "window"])
def test_no_answer_holds_a_foreign_secret(overlap: int, windows: Windows) -> None:
    keep_secrets(250, overlap=overlap, index=RadixCache, windows=windows)


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("overlap", [0, 1], ids=["overlap-0", "overlap-1"])
@pytest.mark.parametrize("index", [RadixCache, BlockHashCache], ids=["radix", "block-hash"])
def test_no_answer_of_thousands_holds_a_foreign_secret(overlap: int, index: Index) -> None:
    keep_secrets(5000, overlap=overlap, index=index, windows=FULL)


@pytest.mark.parametrize("overlap", [0, 1], ids=["overlap-0", "overlap-1"])
@pytest.mark.parametrize("windows", [FULL, (None, 6), (None, 3)], ids=["full", "window", "window within a block"])
def test_what_comes_back_from_below_holds_no_foreign_secret(windows: Windows, overlap: int, tmp_path: Path) -> None:
    keep_secrets_below(120, overlap=overlap, index=RadixCache, windows=windows, disk=tmp_path)


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("overlap", [0, 1], ids=["overlap-0", "overlap-1"])
@pytest.mark.parametrize("windows", [FULL, (None, 6)], ids=["full", "window"])
@pytest.mark.parametrize("index", [RadixCache, BlockHashCache], ids=["radix", "block-hash"])
def test_of_thousands_that_come_back_from_a_disk_none_holds_a_foreign_secret(
    index: Index, windows: Windows, overlap: int, tmp_path: Path
) -> None:
    keep_secrets_below(2500, overlap=overlap, index=index, windows=windows, disk=tmp_path)
