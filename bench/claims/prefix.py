"""Claims 3 and 10: what the prefix cache saves where prompts begin alike, and costs where they do not."""

import statistics

from bench.claims.claim import COUNTED, CPU_CLOCK, Claim, Measured
from bench.claims.engine import BLOCK_TOKENS, Arrival, Engine, demo_config, demo_runner
from bench.claims.workload import median_ratio, paired, prompt

REQUESTS, PREFIX, SUFFIX = 64, 1024, 16
_STEP_TOKENS = 4096


def sharing() -> Measured:
    baseline, ours = (_blocks(prefix_cache) for prefix_cache in ("disabled", None))
    ratio = baseline["prefix"] / ours["prefix"]
    block_bytes = demo_runner().facts.groups[0].block_bytes
    gib = float(1 << 30)
    return Measured(
        baseline=baseline["prefix"],
        ours=ours["prefix"],
        ratio=ratio,
        ok=ratio >= 60,
        reason=None if ratio >= 60 else f"{ours['prefix']} blocks hold the prefix",
        figures={
            "all blocks, baseline": baseline["all"],
            "all blocks, ours": ours["all"],
            "all blocks, ratio": baseline["all"] / ours["all"],
            "GiB of the prefix, baseline": baseline["prefix"] * block_bytes / gib,
            "GiB of the prefix, ours": ours["prefix"] * block_bytes / gib,
            "GiB at 384 KiB a token, baseline": baseline["prefix"] * BLOCK_TOKENS * 384 * 1024 / gib,
            "GiB at 384 KiB a token, ours": ours["prefix"] * BLOCK_TOKENS * 384 * 1024 / gib,
        },
    )


def _blocks(prefix_cache: str | None) -> dict[str, int]:
    """Blocks that hold the prefix, and all owned ones, while all requests run."""
    chosen = {} if prefix_cache is None else {"prefix_cache": prefix_cache}
    engine = Engine(
        demo_runner(),
        demo_config(blocks=5000, max_batch_tokens=_STEP_TOKENS, chunked_prefill_tokens=_STEP_TOKENS, **chosen),
    )
    shared = prompt(PREFIX, seed=0)
    arrivals = [Arrival(prompt=shared + prompt(SUFFIX, seed=n), output_tokens=400) for n in range(1, REQUESTS + 1)]
    engine.serve(arrivals[:1], until=lambda served: any(one.token_times for one in served))
    engine.serve(
        arrivals[1:], until=lambda served: len(served) == REQUESTS - 1 and all(one.token_times for one in served)
    )
    kv = engine.core.scheduler.kv
    assert len(kv.holdings) == REQUESTS, "all run at once"
    prefix = {block for holding in kv.holdings.values() for block in holding.tables[0][: PREFIX // BLOCK_TOKENS]}
    return {"prefix": len(prefix), "all": kv.pool.owned}


ROUNDS, MISSES, MISS_PROMPT, MISS_OUTPUT = 15, 4, 256, 8


def no_hits() -> Measured:
    pairs = paired(lambda: _serve_misses("disabled"), lambda: _serve_misses("radix"), rounds=ROUNDS)
    tokens = MISSES * (MISS_PROMPT + MISS_OUTPUT)
    baseline, ours = (tokens / statistics.median(seconds) for seconds in zip(*pairs, strict=True))
    ratio = median_ratio(pairs)
    ok = ratio >= 0.98
    return Measured(
        baseline=baseline,
        ours=ours,
        ratio=ratio,
        ok=ok,
        reason=None if ok else f"{1 - ratio:.1%} of the throughput is lost",
        figures={"rounds": float(ROUNDS)},
    )


def _serve_misses(prefix_cache: str) -> float:
    """Seconds of prompts that a cold cache has never seen."""
    arrivals = [Arrival(prompt=prompt(MISS_PROMPT, seed=n), output_tokens=MISS_OUTPUT) for n in range(MISSES)]
    served = Engine(demo_runner(), demo_config(blocks=200, prefix_cache=prefix_cache)).serve(arrivals)
    assert not any(one.cached_tokens for one in served), "none of the prompts begins like another"
    return max(one.token_times[-1] for one in served)


CLAIMS = (
    Claim(
        id="3",
        what="64 requests with one prefix of 1,024 tokens hold its KV once",
        baseline="the same requests without prefix cache",
        unit="blocks of 16 tokens that hold the prefix while all requests run",
        wanted="60 times fewer or better",
        concurrency=f"{REQUESTS}, the first one earlier than the others",
        prompt_tokens=f"{PREFIX} shared + {SUFFIX} of each",
        output_tokens="running when counted",
        clock=COUNTED,
        measure=sharing,
    ),
    Claim(
        id="10",
        what="A prefix cache that never hits costs next to nothing",
        baseline="prefix cache disabled",
        unit=f"prompt and output tokens a second, medians of {ROUNDS} rounds, ratio of each",
        wanted="0.98 of the baseline or better",
        concurrency=f"{MISSES}",
        prompt_tokens=f"{MISS_PROMPT}, all different",
        output_tokens=f"{MISS_OUTPUT}",
        clock=CPU_CLOCK,
        measure=no_hits,
    ),
)
