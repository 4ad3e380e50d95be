"""Claim 14: the ladder, one improvement upon the other on one load."""

import itertools
import statistics
import time
from dataclasses import dataclass
from functools import cache

import torch

from bench.claims.claim import CPU_CLOCK, Claim, Measured
from bench.claims.engine import BLOCK_TOKENS, Arrival, Engine, demo_config, demo_file, demo_runner
from bench.claims.workload import prompt
from kvik_engine.bench.figures import percentile
from kvik_engine.core.loop import EngineCore
from kvik_engine.core.strategy import CONTIGUOUS_CONTEXT, PRODUCT, Strategy, contiguous_context_kv
from kvik_engine.models.read_config import from_hf
from kvik_engine.runner.dtypes import DTYPES
from kvik_engine.scheduler.batching import StaticBatching
from kvik_engine.scheduler.room import ContiguousRoom
from kvik_engine.weights.checkpoint import open_checkpoint

RUNGS: tuple[tuple[str, Strategy, str], ...] = (
    ("static, contiguous", Strategy(StaticBatching, ContiguousRoom, contiguous_context_kv), "disabled"),
    ("+ continuous batching", CONTIGUOUS_CONTEXT, "disabled"),
    ("+ paged KV", PRODUCT, "disabled"),
    ("+ prefix cache", PRODUCT, "radix"),
)
REQUESTS, ROWS, POOL_BLOCKS, CONTEXT = 24, 16, 150, 768
SYSTEM, OWN, OUTPUTS, EVERY = 192, (16, 32, 48, 64, 96), (8, 12, 16, 48), 0.25
"""Tokens of the system prompt all share, of the rest in turn, of the answers in turn; seconds between arrivals."""


def ladder() -> Measured:
    rungs = [(name, _climb(strategy, prefix_cache)) for name, strategy, prefix_cache in RUNGS]
    (_, first), (_, last) = rungs[0], rungs[-1]
    later = [after for (_, low), (after, high) in itertools.pairwise(rungs) if high.ttft_p99 >= low.ttft_p99]
    ok = not later and last.rate > first.rate
    return Measured(
        baseline=first.rate,
        ours=last.rate,
        ratio=last.rate / first.rate,
        ok=ok,
        reason=None if ok else f"{last.rate / first.rate:.2f} times the rate; P99 TTFT no lower at: {', '.join(later)}",
        figures={f"{name}: {what}": value for name, rung in rungs for what, value in rung.figures().items()},
    )


@dataclass(frozen=True, slots=True)
class _Rung:
    rate: float
    """Output tokens a second."""
    ttft_median: float
    ttft_p99: float
    kv_mib: float
    """Owned at the fullest moment."""
    fill: float
    """Of owned slots, mean over the steps."""
    utilisation: float
    """Of the peak of the computing thread: arithmetic that the answers need, without what is computed again."""

    def figures(self) -> dict[str, float]:
        return {
            "tokens/s": self.rate,
            "median TTFT, s": self.ttft_median,
            "P99 TTFT, s": self.ttft_p99,
            "KV at most, MiB": self.kv_mib,
            "KV fill": self.fill,
            "of the thread's matmul peak": self.utilisation,
        }


def _climb(strategy: Strategy, prefix_cache: str) -> _Rung:
    owned: list[int] = []
    fill: list[float] = []

    def look(core: EngineCore) -> None:
        pool = core.scheduler.kv.pool
        if pool.owned:
            owned.append(pool.owned)
            fill.append(core.stats.snapshot(core.scheduler).kv_tokens / (pool.owned * BLOCK_TOKENS))

    config = demo_config(
        blocks=POOL_BLOCKS,
        max_context_tokens=CONTEXT,
        max_requests=ROWS,
        prefix_cache=prefix_cache,
    )
    engine = Engine(demo_runner(), config, strategy)
    served = engine.serve(_load(), after_step=look)
    seconds = max(one.token_times[-1] for one in served)
    ttft = [one.ttft for one in served]
    counters = engine.core.scheduler.counters
    computed = counters.prompt_tokens - counters.prefix_hit_tokens + counters.generation_tokens
    return _Rung(
        rate=counters.generation_tokens / seconds,
        ttft_median=statistics.median(ttft),
        ttft_p99=percentile(sorted(ttft), 0.99),
        kv_mib=max(owned) * demo_runner().facts.groups[0].block_bytes / (1 << 20),
        fill=statistics.mean(fill),
        utilisation=_arithmetic(computed, counters.generation_tokens) / seconds / _peak(),
    )


def _load() -> list[Arrival]:
    system = prompt(SYSTEM, seed=0)
    return [
        Arrival(
            prompt=system + prompt(OWN[n % len(OWN)], seed=1 + n),
            output_tokens=OUTPUTS[n % len(OUTPUTS)],
            at=n * EVERY,
        )
        for n in range(REQUESTS)
    ]


def _arithmetic(tokens: int, sampled: int) -> float:
    """Of the matrices, 2 a parameter and token. The output head, which is the input's too, counts for samples only."""
    facts = demo_runner().facts
    head = facts.vocab_size * from_hf(open_checkpoint(demo_file()).config).hidden_size
    return 2.0 * ((facts.parameters - head) * tokens + head * sampled)


@cache
def _peak() -> float:
    """Operations a second that one thread reaches multiplying large matrices in the model's dtype."""
    side, rounds = 1024, 12
    one = torch.ones(side, side, dtype=DTYPES[demo_runner().facts.dtype])
    best = float("inf")
    for _ in range(rounds):
        started = time.process_time()
        one @ one
        best = min(best, time.process_time() - started)
    return 2.0 * side**3 / best


CLAIMS = (
    Claim(
        id="14",
        what="The ladder: each improvement serves the same load sooner",
        baseline="static batches, each request with a contiguous reservation of the served context",
        unit="output tokens a second",
        wanted="a lower P99 TTFT on each rung, more tokens a second at the top",
        concurrency=f"{REQUESTS}, one each {EVERY} s; {ROWS} rows, {POOL_BLOCKS} blocks of {BLOCK_TOKENS} tokens",
        prompt_tokens=f"{SYSTEM} shared, then {', '.join(map(str, OWN))} in turn",
        output_tokens=f"{', '.join(map(str, OUTPUTS))} in turn",
        clock=CPU_CLOCK,
        measure=ladder,
    ),
)
