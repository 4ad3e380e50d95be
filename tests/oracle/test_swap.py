"""In fp32 the engine's greedy tokens equal transformers' own when requests are swapped out and in, when they are
computed again instead, and when a prefix comes back from the host's memory.

The recorded tokens are the oracle's, as in test_tokens.py.
"""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

import pytest

from kvik_engine.config import EngineConfig
from kvik_engine.params import SamplingParams
from kvik_engine.runner.runner import ModelRunner
from kvik_engine.scheduler.swap_or_recompute import PreemptionMode
from tests.support.oracle import STEPS, oracle_prompts
from tests.support.real_core import RealCore, Settings

GREEDY = SamplingParams(max_tokens=STEPS, seed=0, temperature=0.0)
CROWD = (14, *range(14))
BLOCKS = 36
"""Fifteen prompts of 3 to 160 tokens start in this pool and outgrow it."""
PREFIXES = (13, 14, 15, 16)
pytestmark = pytest.mark.timeout(600)


class Run(NamedTuple):
    """One row of the table."""

    mode: PreemptionMode
    slots: int
    chunk: int
    prefix_cache: bool
    overlap: int

    def __str__(self) -> str:
        cache = "prefix cache" if self.prefix_cache else "no prefix cache"
        return f"{self.mode}, {self.slots} slots, chunk {self.chunk}, {cache}, overlap {self.overlap}"


TABLE = [Run(PreemptionMode.SWAP, 200, 100, True, 1)]
"""A pool so small takes many steps: the other rows are long tests."""
SCARCE = [Run(PreemptionMode.AUTO, 20, 100, True, 0), Run(PreemptionMode.SWAP, 20, 100, False, 1)]
"""A host pool with room for one or two requests: the others are computed again."""
ALL = [*map(Run._make, product(PreemptionMode, (200,), (16, 100, 512), (False, True), (0, 1))), *SCARCE]


@pytest.mark.parametrize("run", TABLE, ids=str)
def test_swapped_and_recomputed_tokens_equal_the_oracles(runner: ModelRunner, config: EngineConfig, run: Run) -> None:
    core = check(runner, config, run)
    counters = core.core.scheduler.counters
    assert counters.preemptions > 0
    assert (counters.swaps > 0) == (run.mode is PreemptionMode.SWAP)


@pytest.mark.long
@pytest.mark.parametrize("run", ALL, ids=str)
def test_swapped_and_recomputed_tokens_equal_the_oracles_in_every_combination(
    runner: ModelRunner, config: EngineConfig, run: Run
) -> None:
    assert check(runner, config, run).core.scheduler.counters.preemptions > 0


def test_a_prefix_from_the_host_gives_the_cold_answer(runner: ModelRunner, config: EngineConfig) -> None:
    """Each prompt fills the pool, so that the one before it lies on the host alone when it comes again."""
    cases = [oracle_prompts()[i] for i in PREFIXES]
    longest = max(len(case.prompt) for case in cases)
    settings = Settings(at_once=1, chunk=512, blocks=-(-(longest + STEPS) // 16) + 1, swap_slots=200)
    core = RealCore(runner, config, settings)
    cold = [core.generate([case.prompt], GREEDY)[0] for case in cases]
    _, before = moved(core)
    warm = [core.generate([case.prompt], GREEDY)[0] for case in cases]

    assert [one.tokens for one in cold] == [case.tokens for case in cases]
    assert [one.tokens for one in warm] == [case.tokens for case in cases]
    whole = [(len(case.prompt) - 1) // 16 for case in cases]
    assert [one.cached_tokens // 16 for one in warm] == whole
    assert moved(core)[1] - before > sum(whole) // 2


def check(runner: ModelRunner, config: EngineConfig, run: Run) -> RealCore:
    cases = [oracle_prompts()[i] for i in CROWD]
    settings = Settings(
        at_once=16,
        chunk=run.chunk,
        prefix_cache="radix" if run.prefix_cache else "disabled",
        overlap=run.overlap,
        blocks=BLOCKS,
        swap_slots=run.slots,
        preemption_mode=run.mode,
    )
    core = RealCore(runner, config, settings)
    heard = core.generate([case.prompt for case in cases], GREEDY)
    assert {i: one.tokens for i, one in enumerate(heard)} == {i: case.tokens for i, case in enumerate(cases)}
    return core


def moved(core: RealCore) -> tuple[int, int]:
    """Blocks out and in."""
    use = core.core.scheduler.offload.use
    return use.swapped_out, use.swapped_in
