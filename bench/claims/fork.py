"""Claim 7: choices of one prompt hold it once."""

from bench.claims.claim import COUNTED, Claim, Measured
from bench.claims.engine import Arrival, Engine, demo_config, demo_runner
from bench.claims.workload import prompt
from kvik_engine.core.loop import EngineCore

CHOICES, PROMPT, OUTPUTS = 8, 1000, (16, 64)


def parallel_sampling() -> Measured:
    figures: dict[str, float] = {}
    ratios: list[float] = []
    for output in OUTPUTS:
        separate, forked, one = (_most_blocks(*shape, output) for shape in ((CHOICES, 1), (1, CHOICES), (1, 1)))
        figures |= {
            f"{output} output tokens, separate": separate,
            f"{output} output tokens, n = {CHOICES}": forked,
            f"{output} output tokens, n = 1": one,
        }
        ratios.append(forked / one)
    most, shared = (figures[f"{OUTPUTS[0]} output tokens, {kind}"] for kind in ("separate", f"n = {CHOICES}"))
    ok = ratios[0] < 1.3
    return Measured(
        baseline=most,
        ours=shared,
        ratio=most / shared,
        ok=ok,
        reason=None if ok else f"{ratios[0]:.2f} times the blocks of one choice",
        figures=figures,
    )


def _most_blocks(requests: int, choices: int, output: int) -> int:
    """Blocks owned at the fullest moment."""
    most = 0

    def look(core: EngineCore) -> None:
        nonlocal most
        most = max(most, core.scheduler.kv.pool.owned)

    config = demo_config(blocks=1000, prefix_cache="disabled", max_batch_tokens=2048, chunked_prefill_tokens=2048)
    Engine(demo_runner(), config).serve(
        [Arrival(prompt=prompt(PROMPT, seed=1), output_tokens=output, choices=choices) for _ in range(requests)],
        after_step=look,
    )
    return most


CLAIMS = (
    Claim(
        id="7n",
        what=f"{CHOICES} choices of one prompt share its blocks until they differ",
        baseline=f"{CHOICES} separate requests without prefix cache",
        unit=f"blocks at the fullest moment, {OUTPUTS[0]} output tokens",
        wanted="below 1.3 times the blocks of one choice",
        concurrency=f"1 of n = {CHOICES}, against {CHOICES}",
        prompt_tokens=f"{PROMPT}",
        output_tokens=f"{OUTPUTS[0]}, and {OUTPUTS[1]} among the figures",
        clock=COUNTED,
        measure=parallel_sampling,
    ),
)
