"""Claim 7: choices of one prompt hold it once, and so do the beams of a search."""

from functools import partial

from bench.claims.claim import COUNTED, Claim, Measured
from bench.claims.engine import Arrival, Engine, demo_config, demo_runner
from bench.claims.workload import prompt
from kvik_engine.core.loop import EngineCore
from kvik_engine.params import BeamParams

CHOICES, PROMPT, OUTPUTS = 8, 1000, (16, 64)


def forked(name: str, beam: BeamParams | None) -> Measured:
    """One request of several choices, or beams, against as many requests. `name` is what they are called."""
    figures: dict[str, float] = {}
    ratios: list[float] = []
    for output in OUTPUTS:
        separate, together, one = (
            _most_blocks(requests, choices, output, beam if choices > 1 else None)
            for requests, choices in ((CHOICES, 1), (1, CHOICES), (1, 1))
        )
        figures |= {
            f"{output} output tokens, separate": separate,
            f"{output} output tokens, {name} = {CHOICES}": together,
            f"{output} output tokens, {name} = 1": one,
        }
        ratios.append(together / one)
    most, shared = (figures[f"{OUTPUTS[0]} output tokens, {kind}"] for kind in ("separate", f"{name} = {CHOICES}"))
    ok = ratios[0] < 1.3
    return Measured(
        baseline=most,
        ours=shared,
        ratio=most / shared,
        ok=ok,
        reason=None if ok else f"{ratios[0]:.2f} times the blocks of one {name}",
        figures=figures,
    )


def _most_blocks(requests: int, choices: int, output: int, beam: BeamParams | None) -> int:
    """Blocks owned at the fullest moment."""
    most = 0

    def look(core: EngineCore) -> None:
        nonlocal most
        most = max(most, core.scheduler.kv.pool.owned)

    config = demo_config(blocks=1000, prefix_cache="disabled", max_batch_tokens=2048, chunked_prefill_tokens=2048)
    arrival = Arrival(prompt=prompt(PROMPT, seed=1), output_tokens=output, choices=choices, beam=beam)
    Engine(demo_runner(), config).serve([arrival] * requests, after_step=look)
    return most


def _claim(claim_id: str, what: str, one: str, together: str, name: str, beam: BeamParams | None) -> Claim:
    """`one` is what the claim calls a single one of them, `together` the request that has all."""
    return Claim(
        id=claim_id,
        what=what,
        baseline=f"{CHOICES} separate requests without prefix cache",
        unit=f"blocks at the fullest moment, {OUTPUTS[0]} output tokens",
        wanted=f"below 1.3 times the blocks of one {one}",
        concurrency=f"1 of {together} {CHOICES}, against {CHOICES}",
        prompt_tokens=f"{PROMPT}",
        output_tokens=f"{OUTPUTS[0]}, and {OUTPUTS[1]} among the figures",
        clock=COUNTED,
        measure=partial(forked, name, beam),
    )


CLAIMS = (
    _claim("7n", f"{CHOICES} choices of one prompt share its blocks until they differ", "choice", "n =", "n", None),
    _claim(
        "7b",
        f"{CHOICES} beams of a search share the prompt's blocks, and one another's until they differ",
        "beam",
        "beam width",
        "width",
        BeamParams(),
    ),
)
