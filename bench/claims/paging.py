"""Claim 11: what the block table costs a prefill."""

import statistics
from functools import cache

import torch

from bench.claims.claim import CPU_CLOCK, Claim, Measured
from bench.claims.contiguous import ContiguousBackend
from bench.claims.engine import BLOCK_TOKENS, CpuClock, demo_file, demo_runner
from bench.claims.workload import median_ratio, paired, prompt
from kvik_engine.models.read_config import from_hf
from kvik_engine.params import SamplingParams
from kvik_engine.runner.dtypes import DTYPES
from kvik_engine.runner.load import make_runner
from kvik_engine.runner.runner import ModelRunner, RunnerLimits
from kvik_engine.step import BlockId, Row, RowStart, RowWork, StepPlan
from kvik_engine.weights.checkpoint import CheckpointTensors, open_checkpoint

PROMPT, CHUNK, ROUNDS = 1024, 512, 15


def indirection() -> Measured:
    paged, contiguous = demo_runner(), _contiguous_runner()
    paged.allocate(4 * PROMPT // BLOCK_TOKENS)
    contiguous.allocate(1)
    # Far apart and out of order, as after hours of serving.
    scattered = [BlockId(1 + (n * 97) % (4 * PROMPT // BLOCK_TOKENS)) for n in range(PROMPT // BLOCK_TOKENS)]
    pairs = paired(
        lambda: _prefill(contiguous, [BlockId(1)], PROMPT),
        lambda: _prefill(paged, scattered, BLOCK_TOKENS),
        rounds=ROUNDS,
    )
    baseline, ours = map(statistics.median, zip(*pairs, strict=True))
    more = 1 / median_ratio(pairs) - 1
    ok = more <= 0.05
    return Measured(
        baseline=baseline,
        ours=ours,
        ratio=1 / (1 + more),
        ok=ok,
        reason=None if ok else f"paged prefill takes {more:.1%} longer",
        figures={"paged takes more, per cent": 100 * more, "rounds": float(ROUNDS)},
    )


def _prefill(runner: ModelRunner, blocks: list[BlockId], block_tokens: int) -> float:
    """Seconds of one prompt, chunk by chunk, the sampling of one token included."""
    tokens = prompt(PROMPT, seed=1)
    params = SamplingParams(max_tokens=1, seed=0, temperature=0.0)
    clock = CpuClock()
    for step, start in enumerate(range(0, PROMPT, CHUNK)):
        held = blocks[-(-start // block_tokens) : -(-(start + CHUNK) // block_tokens)]
        work = RowWork(Row(0), start, CHUNK, False, (tuple(held),), (Row(0),) if start + CHUNK == PROMPT else ())
        started = () if start else (RowStart(Row(0), tokens, PROMPT, 0, params, ((),)),)
        runner.launch(StepPlan(step, (work,), started=started))
        runner.collect()
    seconds = clock()
    runner.launch(StepPlan(CHUNK, (), ended=(Row(0),)))
    runner.collect()
    return seconds


@cache
def _contiguous_runner() -> ModelRunner:
    """The same model in the same dtype, with blocks as long as the prompt."""
    checkpoint, dtype = open_checkpoint(demo_file()), demo_runner().facts.dtype
    return make_runner(
        from_hf(checkpoint.config),
        CheckpointTensors(checkpoint, dtype=DTYPES[dtype], device=torch.device("cpu")),
        dtype=dtype,
        backend=ContiguousBackend(),
        limits=RunnerLimits(max_requests=1, max_tokens=PROMPT, block_tokens=PROMPT),
        max_batch_tokens=CHUNK,
        progress=lambda _: None,
    )


CLAIMS = (
    Claim(
        id="11",
        what="Prefill over paged KV takes as long as over contiguous KV",
        baseline="the same model over one piece of memory, without tables",
        unit=f"seconds of a prompt of {PROMPT} tokens, medians of {ROUNDS} rounds, ratio of each",
        wanted="at most 5 % longer",
        concurrency="1",
        prompt_tokens=f"{PROMPT}, in chunks of {CHUNK}, blocks of {BLOCK_TOKENS} scattered over the pool",
        output_tokens="1",
        clock=CPU_CLOCK,
        measure=indirection,
    ),
)
