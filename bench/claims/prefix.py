"""Claims 3 and 10: what the prefix cache saves where prompts begin alike, and costs where they do not."""

from bench.claims.claim import COUNTED, CPU_CLOCK, Claim, Measured
from bench.claims.engine import BLOCK_TOKENS, Arrival, Engine, demo_config, demo_runner
from bench.claims.workload import prompt

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


ROUNDS, MISSES, MISS_PROMPT, MISS_OUTPUT = 4, 12, 256, 16


def no_hits() -> Measured:
    arrivals = [Arrival(prompt=prompt(MISS_PROMPT, seed=n), output_tokens=MISS_OUTPUT) for n in range(MISSES)]
    seconds: dict[str | None, list[float]] = {"disabled": [], None: []}
    hits = 0
    for turn in range(2 * ROUNDS):
        # A B B A: drift of the machine meets both alike.
        which = ("disabled", None, None, "disabled")[turn % 4]
        chosen = {} if which is None else {"prefix_cache": which}
        engine = Engine(demo_runner(), demo_config(blocks=1000, **chosen))
        served = engine.serve(arrivals)
        hits += sum(one.cached_tokens for one in served)
        seconds[which].append(max(one.token_times[-1] for one in served))
    tokens = MISSES * (MISS_PROMPT + MISS_OUTPUT)
    baseline, ours = (tokens / min(seconds[which]) for which in ("disabled", None))
    ok = ours >= 0.98 * baseline and hits == 0
    return Measured(
        baseline=baseline,
        ours=ours,
        ratio=ours / baseline,
        ok=ok,
        reason=None if ok else f"{1 - ours / baseline:.1%} of the throughput is lost, {hits} tokens were hits",
        figures={"hit tokens": float(hits), "rounds": float(ROUNDS)},
    )


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
        unit=f"prompt and output tokens a second, best of {ROUNDS} rounds each",
        wanted="0.98 of the baseline or better",
        concurrency=f"{MISSES}",
        prompt_tokens=f"{MISS_PROMPT}, all different",
        output_tokens=f"{MISS_OUTPUT}",
        clock=CPU_CLOCK,
        measure=no_hits,
    ),
)
