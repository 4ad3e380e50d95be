"""Requests through the real runner before the first client's: kernels, allocators and threads are warm then.

They also tell how long the largest step will take, and so after which time without a step the core must be hung: a
step at the end of a long context takes several times one at its beginning, so both are timed. No step is larger or
deeper than serving's own, whose memory was measured before (runner.largest_step).
"""

from __future__ import annotations

import time

from kvik_engine.kv.manager import KVManager
from kvik_engine.kv.prefix_cache import NoPrefixCache
from kvik_engine.kv.sizing import Ledger
from kvik_engine.params import SamplingParams
from kvik_engine.request import Request
from kvik_engine.scheduler.limits import Limits
from kvik_engine.scheduler.scheduler import Scheduler
from kvik_engine.step import BlockId, Row, RowStart, RowWork, Runner, StepPlan

_PROMPT_TOKENS = 64
_OUTPUT_TOKENS = 3
_ROUNDS = 3
"""The first one pays for what happens once; the quickest counts, since a neighbour may have had the CPU meanwhile."""


def warm_up(runner: Runner, limits: Limits, ledger: Ledger) -> float:
    """Compute prompts and a few tokens with a scheduler and a cache that are thrown away.

    Returns an estimate of the seconds of a step of max_batch_tokens prompt tokens, at the worse end of the context.
    """
    groups = runner.facts.groups
    kv = KVManager(groups, ledger.blocks, NoPrefixCache(len(groups)), step_tokens=limits.max_batch_tokens)
    scheduler = Scheduler(limits, kv)
    prompt = [0] * max(1, min(_PROMPT_TOKENS, ledger.context - _OUTPUT_TOKENS))
    params = SamplingParams(max_tokens=_OUTPUT_TOKENS, seed=0)
    token_seconds: list[float] = []
    rows: set[Row] = set()
    step = 0
    for number in range(_ROUNDS):
        scheduler.add(Request((0, number), prompt, params, 0, 0, b"", time.monotonic()))
        while (plan := scheduler.plan(time.monotonic())) is not None:
            step = plan.step
            rows = (rows - set(plan.ended)) | {start.row for start in plan.started}
            runner.launch(plan)
            result = runner.collect()
            scheduler.settle(result)
            if plan.started:
                token_seconds.append(result.seconds / plan.tokens)
    runner.launch(StepPlan(step=step + 1, work=(), ended=tuple(sorted(rows))))
    runner.collect()
    deep_tokens = min(len(prompt), limits.max_batch_tokens)
    token_second = max(min(token_seconds), _deep_token_seconds(runner, ledger, deep_tokens, step + 2))
    return token_second * limits.max_batch_tokens


def _deep_token_seconds(runner: Runner, ledger: Ledger, tokens: int, step: int) -> float:
    """Seconds a token of the last `tokens` of a full context, the quickest of some steps.

    The past is whatever the blocks hold, zeros mostly: how long attention takes does not depend on it, nor on two
    groups naming the same blocks.
    """
    row, groups = Row(0), len(runner.facts.groups)
    entries = -(-ledger.context // ledger.block_tokens)
    table = tuple(BlockId(1 + entry % ledger.blocks) for entry in range(entries))
    params = SamplingParams(max_tokens=1, seed=0)
    start = RowStart(row, [0] * ledger.context, ledger.context, 0, params, (table,) * groups)
    work = RowWork(row, ledger.context - tokens, tokens, False, ((),) * groups, (row,))
    seconds: list[float] = []
    for number in range(_ROUNDS):
        runner.launch(StepPlan(step + 2 * number, (work,), started=(start,)))
        seconds.append(runner.collect().seconds / tokens)
        runner.launch(StepPlan(step + 2 * number + 1, (), ended=(row,)))
        runner.collect()
    return min(seconds)
