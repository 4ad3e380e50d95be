"""In fp32 the engine's greedy tokens equal transformers' own, however requests are batched, chunked, cached, preempted
or overlapped.

The recorded tokens are the oracle's: test_logits.py computes them anew. A table of ten runs holds every pair of
settings; the whole product of them is marked long.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, product
from typing import NamedTuple

import pytest

from kvik_engine.config import EngineConfig
from kvik_engine.params import SamplingParams
from kvik_engine.runner.runner import ModelRunner
from tests.support.oracle import STEPS, oracle_prompts
from tests.support.real_core import RealCore, Settings

GREEDY = SamplingParams(max_tokens=STEPS, seed=0, temperature=0.0)
ALONE = (0, 13, 16)
"""Prompts of 3 to 333 tokens that also run alone, one step of one row at a time."""
EVERY = range(20)
MEDIUM = range(17)
"""Up to 333 tokens: longer prompts in pieces of 16 would take most of the table's time."""
CROWDED = (14, *range(14))
CROWDED_BLOCKS = 36
"""Fifteen prompts of 3 to 160 tokens start in this pool and outgrow it: four to six are preempted at any chunk size."""
pytestmark = pytest.mark.timeout(600)


class Run(NamedTuple):
    """One row of the table."""

    at_once: int
    chunk: int
    prefix_hit: bool
    preempt: bool
    overlap: int

    def __str__(self) -> str:
        words = [
            "alone" if self.at_once == 1 else f"{self.at_once} at once",
            f"chunk {self.chunk}",
            "prefix hit" if self.prefix_hit else "no prefix hit",
            "preempted" if self.preempt else "not preempted",
            f"overlap {self.overlap}",
        ]
        return ", ".join(words)


TABLE = [
    Run(1, 16, False, False, 0),
    Run(1, 100, True, False, 1),
    Run(1, 512, False, False, 1),
    Run(1, 512, True, False, 0),
    Run(16, 16, True, True, 1),
    Run(16, 16, False, False, 0),
    Run(16, 100, False, True, 0),
    Run(16, 100, True, False, 1),
    Run(16, 512, True, True, 0),
    Run(16, 512, False, True, 1),
]
CHOICES = ((1, 16), (16, 100, 512), (False, True), (False, True), (0, 1))
ALL = [run for run in map(Run._make, product(*CHOICES)) if not (run.at_once == 1 and run.preempt)]


def test_the_table_holds_every_pair_of_settings_that_can_be() -> None:
    possible = {pair for run in ALL for pair in combinations(enumerate(run), 2)}
    covered = {pair for run in TABLE for pair in combinations(enumerate(run), 2)}

    assert possible - covered == set()


@pytest.mark.parametrize("run", TABLE, ids=str)
def test_greedy_tokens_equal_the_oracles(runner: ModelRunner, config: EngineConfig, run: Run) -> None:
    together = EVERY if run.chunk > 16 else MEDIUM
    check(runner, config, run, ALONE if run.at_once == 1 else together)


@pytest.mark.long
def test_requests_packed_with_any_others_get_the_oracles_tokens(runner: ModelRunner, config: EngineConfig) -> None:
    """They join one after the other while others decode or compute prompts, and leave at steps of their own."""
    cases = [oracle_prompts()[i] for i in MEDIUM]
    real = RealCore(runner, config, Settings(at_once=16, join_after=5, chunk=100, prefix_cache="disabled", overlap=1))
    heard = real.generate([case.prompt for case in cases], GREEDY)

    assert [one.tokens for one in heard] == [case.tokens for case in cases]


@pytest.mark.long
@pytest.mark.parametrize("run", ALL, ids=str)
def test_greedy_tokens_equal_the_oracles_in_every_combination(
    runner: ModelRunner, config: EngineConfig, run: Run
) -> None:
    check(runner, config, run, EVERY)


def check(runner: ModelRunner, config: EngineConfig, run: Run, indices: Sequence[int]) -> None:
    """Run the prompts and compare; then see that the run was what it says."""
    cases = [oracle_prompts()[i] for i in (CROWDED if run.preempt else indices)]
    settings = Settings(
        at_once=run.at_once,
        chunk=run.chunk,
        prefix_cache="radix" if run.prefix_hit else "disabled",
        overlap=run.overlap,
        blocks=CROWDED_BLOCKS if run.preempt else 1024,
    )
    real = RealCore(runner, config, settings)
    prompts = [case.prompt for case in cases]
    if run.prefix_hit:
        # The other way round, so that in a crowded pool the prompts that come first are still cached.
        real.generate(prompts[::-1], SamplingParams(max_tokens=1, seed=0, temperature=0.0))
    heard = real.generate(prompts, GREEDY)

    assert {i: one.tokens for i, one in enumerate(heard)} == {i: case.tokens for i, case in enumerate(cases)}
    assert (real.core.scheduler.counters.preemptions > 0) == run.preempt
    assert any(one.cached_tokens > 0 for one in heard) == run.prefix_hit
