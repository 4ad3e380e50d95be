"""One request through the real runner before the first client's: kernels, allocators and threads are warm then."""

from __future__ import annotations

import time

from kvik_engine.kv.manager import KVManager
from kvik_engine.kv.prefix_hash import NoPrefixCache
from kvik_engine.kv.sizing import Ledger
from kvik_engine.params import SamplingParams
from kvik_engine.request import Request
from kvik_engine.scheduler.scheduler import Limits, Scheduler
from kvik_engine.step import Row, Runner, StepPlan

_PROMPT_TOKENS = 64
_OUTPUT_TOKENS = 3


def warm_up(runner: Runner, limits: Limits, ledger: Ledger) -> float:
    """Compute a prompt and a few tokens with a scheduler and a cache that are thrown away. Returns the seconds."""
    started = time.perf_counter()
    kv = KVManager(runner.facts.groups, ledger.blocks, NoPrefixCache())
    scheduler = Scheduler(limits, kv)
    prompt = [0] * max(1, min(_PROMPT_TOKENS, ledger.context - _OUTPUT_TOKENS))
    params = SamplingParams(max_tokens=_OUTPUT_TOKENS, seed=0)
    scheduler.add(
        Request(key=(0, 0), prompt=prompt, params=params, slo_class=0, priority=0, salt=b"", arrival=time.monotonic())
    )
    rows: set[Row] = set()
    step = 0
    while (plan := scheduler.plan(time.monotonic())) is not None:
        step = plan.step
        rows.update(start.row for start in plan.started)
        runner.launch(plan)
        scheduler.settle(runner.collect())
    runner.launch(StepPlan(step=step + 1, work=(), ended=tuple(sorted(rows))))
    runner.collect()
    return time.perf_counter() - started
