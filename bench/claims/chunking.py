"""Claim 5: streams go on while a long prompt enters."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from bench.claims.claim import CPU_CLOCK, Claim, Measured
from bench.claims.engine import Arrival, Engine, Served, demo_config, demo_runner
from bench.claims.workload import prompt

STREAMS, STREAM_PROMPT, LONG_PROMPT, CHUNK, WHOLE = 4, 32, 4000, 128, 4096
ROUNDS = 2
_BEFORE = 10
"""Tokens of each stream before the long prompt comes."""


def chunked_prefill() -> Measured:
    worst = min(_gaps(WHOLE).largest for _ in range(ROUNDS))
    ours = min((_gaps(CHUNK) for _ in range(ROUNDS)), key=lambda gaps: gaps.largest)
    of_a_step = ours.largest / ours.median
    ok = ours.largest < worst and of_a_step <= 2
    return Measured(
        baseline=worst,
        ours=ours.largest,
        ratio=worst / ours.largest,
        ok=ok,
        reason=None if ok else f"the largest gap is {of_a_step:.2f} times a chunk's own step",
        figures={"median gap while chunks are computed": ours.median, "largest gap of median gaps": of_a_step},
    )


@dataclass(frozen=True, slots=True)
class _Gaps:
    """Between tokens of the streams, from the arrival of the long prompt to its first token."""

    largest: float
    median: float


def _gaps(chunk: int) -> _Gaps:
    engine = Engine(
        demo_runner(), demo_config(blocks=400, max_batch_tokens=WHOLE, chunked_prefill_tokens=chunk, max_requests=8)
    )
    streams = [Arrival(prompt=prompt(STREAM_PROMPT, seed=n), output_tokens=200) for n in range(STREAMS)]
    begun = engine.serve(streams, until=lambda served: bool(served) and _all_have(served, _BEFORE))
    (long,) = engine.serve(
        [Arrival(prompt=prompt(LONG_PROMPT, seed=99), output_tokens=2)],
        until=lambda served: bool(served) and bool(served[0].token_times),
    )
    entered = [
        after - before
        for one in begun
        for before, after in zip(one.token_times, one.token_times[1:], strict=False)
        if after > long.arrival.at
    ]
    return _Gaps(max(entered), statistics.median(entered))


def _all_have(served: Sequence[Served], tokens: int) -> bool:
    return len(served) == STREAMS and all(len(one.token_times) >= tokens for one in served)


CLAIMS = (
    Claim(
        id="5",
        what="Chunked prefill: running streams hardly wait for a prompt of 4,000 tokens",
        baseline=f"the prompt in one piece (chunkedPrefillTokens {WHOLE})",
        unit=f"seconds of the largest gap between tokens of a running stream, best of {ROUNDS} rounds each",
        wanted=f"smaller, and at most twice the step of a chunk of {CHUNK}",
        concurrency=f"{STREAMS} streams and the prompt",
        prompt_tokens=f"{STREAM_PROMPT} of each stream, then {LONG_PROMPT}",
        output_tokens="200 of each stream",
        clock=CPU_CLOCK,
        measure=chunked_prefill,
    ),
)
