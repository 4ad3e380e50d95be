"""Claims 1, 2 and 12: paging against contiguous reservation, continuous against static batching."""

import statistics
from dataclasses import dataclass

from bench.claims.claim import COUNTED, CPU_CLOCK, Claim, Measured
from bench.claims.engine import BLOCK_TOKENS, Arrival, Engine, demo_config, demo_runner
from bench.claims.workload import median_ratio, prompt
from kvik_engine.bench.figures import percentile
from kvik_engine.core.loop import EngineCore
from kvik_engine.core.stats import kv_tokens
from kvik_engine.core.strategy import CONTIGUOUS_CONTEXT, PRODUCT, STATIC, Strategy

POOL_BLOCKS, CONTEXT, PAGED_OUTPUT = 200, 1024, 32
PAGED_PROMPTS = tuple(200 + 40 * (n % 5) for n in range(20))


def paging() -> Measured:
    (many, fill), (few, reserved) = (_occupancy(strategy) for strategy in (PRODUCT, CONTIGUOUS_CONTEXT))
    ok = many >= 2 * few and fill >= 0.95
    return Measured(
        baseline=few,
        ours=many,
        ratio=many / few,
        ok=ok,
        reason=None if ok else f"{many / few:.2f} times the requests at a fill of {fill:.3f}",
        figures={"fill, baseline": reserved, "fill, ours": fill},
    )


def _occupancy(strategy: Strategy) -> tuple[float, float]:
    """Mean requests at once and mean fill, over the steps before which others wait."""
    running: list[int] = []
    fill: list[float] = []

    def look(core: EngineCore) -> None:
        pool = core.scheduler.kv.pool
        if len(core.scheduler.waiting) and pool.owned:
            running.append(len(core.scheduler.running))
            fill.append(kv_tokens(core.scheduler) / (pool.owned * BLOCK_TOKENS))

    config = demo_config(blocks=POOL_BLOCKS, max_context_tokens=CONTEXT, max_batch_tokens=512)
    engine = Engine(demo_runner(), config, strategy)
    engine.serve(
        [Arrival(prompt=prompt(length, seed=n), output_tokens=PAGED_OUTPUT) for n, length in enumerate(PAGED_PROMPTS)],
        after_step=look,
    )
    return statistics.mean(running), statistics.mean(fill)


ROWS, ROUNDS = 8, 3
MIXED_OUTPUTS = tuple(96 if n % ROWS == 0 else 6 + n % 5 for n in range(40))
MIXED_PROMPTS = tuple(16 + 8 * (n % 6) for n in range(40))


def continuous() -> Measured:
    pairs = [(_serve_mixed(STATIC), _serve_mixed(PRODUCT)) for _ in range(ROUNDS)]
    faster = median_ratio([(static.seconds, ours.seconds) for static, ours in pairs])
    lower = 1 - 1 / median_ratio([(static.p99_latency, ours.p99_latency) for static, ours in pairs])
    (static, ours), *_ = pairs
    baseline = sum(MIXED_OUTPUTS) / statistics.median(static.seconds for static, _ in pairs)
    ok = faster >= 3 and lower >= 0.4
    return Measured(
        baseline=baseline,
        ours=baseline * faster,
        ratio=faster,
        ok=ok,
        reason=None if ok else f"{faster:.2f} times the throughput, P99 latency {lower:.0%} lower: {_WHY_NOT_ON_A_CPU}",
        figures={
            "P99 latency lower by, per cent": 100 * lower,
            "steps, baseline": static.steps,
            "steps, ours": ours.steps,
        },
    )


_WHY_NOT_ON_A_CPU = "where a step takes longer the more rows it has, as on a CPU, fewer steps save less than on a GPU"


@dataclass(frozen=True, slots=True)
class _Batch:
    """What serving the mixed lengths took."""

    seconds: float
    p99_latency: float
    steps: int


def _serve_mixed(strategy: Strategy) -> _Batch:
    arrivals = [
        Arrival(prompt=prompt(length, seed=n), output_tokens=output)
        for n, (length, output) in enumerate(zip(MIXED_PROMPTS, MIXED_OUTPUTS, strict=True))
    ]
    engine = Engine(demo_runner(), demo_config(blocks=1000, max_requests=ROWS), strategy)
    served = engine.serve(arrivals)
    return _Batch(
        seconds=max(one.token_times[-1] for one in served),
        p99_latency=percentile(sorted(one.latency for one in served), 0.99),
        steps=engine.core.stats.steps,
    )


SHORT, LONG, SHORTS, SHORT_OUTPUT = 100, 4000, 16, 8
_EVERY = 0.4
"""Seconds between short requests."""


def short_among_long() -> Measured:
    static, ours = (_short_latency(strategy) for strategy in (STATIC, PRODUCT))
    ok = ours < static
    return Measured(
        baseline=static,
        ours=ours,
        ratio=static / ours,
        ok=ok,
        reason=None if ok else "short requests wait longer than under static batching",
    )


def _short_latency(strategy: Strategy) -> float:
    """P99 of the short requests."""
    long = [Arrival(prompt=prompt(LONG, seed=500 + n), output_tokens=SHORT_OUTPUT, at=n * 3.0) for n in range(2)]
    short = [
        Arrival(prompt=prompt(SHORT, seed=n), output_tokens=SHORT_OUTPUT, at=0.1 + n * _EVERY) for n in range(SHORTS)
    ]
    served = Engine(demo_runner(), demo_config(blocks=1000, max_requests=ROWS), strategy).serve([*long, *short])
    return percentile(sorted(one.latency for one in served if len(one.arrival.prompt) == SHORT), 0.99)


CLAIMS = (
    Claim(
        id="1",
        what="Paged KV lets more requests run in the same memory than reservation of the longest context",
        baseline=f"a contiguous reservation of the served context ({CONTEXT} tokens) for each request",
        unit=f"requests at once in {POOL_BLOCKS} blocks of {BLOCK_TOKENS} tokens, mean while others wait",
        wanted="2 to 4 times as many or more, fill (tokens of owned slots) 0.95 or more against 0.25 to 0.40",
        concurrency=f"{len(PAGED_PROMPTS)} submitted together",
        prompt_tokens="200, 240, 280, 320 and 360 in turn",
        output_tokens=f"{PAGED_OUTPUT}",
        clock=COUNTED,
        measure=paging,
    ),
    Claim(
        id="2",
        what="Continuous batching serves mixed lengths faster than static batches",
        baseline="static batches: nobody joins before all of a batch have ended (ended rows are not computed)",
        unit=f"output tokens a second, medians of {ROUNDS} rounds",
        wanted="3 times as many or more, and P99 latency at least 40 % lower",
        concurrency=f"{len(MIXED_OUTPUTS)} submitted together, {ROWS} rows",
        prompt_tokens="16 to 56",
        output_tokens=f"one in {ROWS} has 96, the others 6 to 10",
        clock=CPU_CLOCK,
        measure=continuous,
    ),
    Claim(
        id="12",
        what="Requests of 100 tokens get through among those of 4,000",
        baseline="static batches",
        unit="seconds, P99 latency of the short requests",
        wanted="lower",
        concurrency=f"{SHORTS} short ones, one each {_EVERY} s, and 2 long ones; {ROWS} rows",
        prompt_tokens=f"{SHORT} and {LONG}",
        output_tokens=f"{SHORT_OUTPUT}",
        clock=CPU_CLOCK,
        measure=short_among_long,
    ),
)
