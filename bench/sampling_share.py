"""What share of a step the sampler takes, on the embedded model with 16 rows: part of `make bench`.

For each kind of sampling 16 rows decode: the sampler's time over the whole step's. Both are processor time of one
thread, so that other work on the machine does not show. The prompts are random tokens: what the model says of them is
flatter than after text, which is the hard case for top_p.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import torch
from torch import Tensor

from bench.report import Report
from kvik_engine.cli.sources import DEMO, local_model
from kvik_engine.config import EngineConfig
from kvik_engine.params import SamplingParams
from kvik_engine.runner.load import load_runner
from kvik_engine.runner.runner import ModelRunner
from kvik_engine.sampling.batch import Samples, SamplingBatch
from kvik_engine.sampling.sampler import sample
from kvik_engine.step import BlockId, Row, RowStart, RowWork, StepPlan
from kvik_engine.weights.model_files import find_model_files

PROMPT = 64
BLOCK = 16
WANTED = 0.10
PLAIN = SamplingParams(max_tokens=1000, seed=1)
PENALISED = replace(PLAIN, presence_penalty=0.5, frequency_penalty=0.5, repetition_penalty=1.1)
KINDS = {
    "greedy": replace(PLAIN, temperature=0.0),
    "temperature 1": PLAIN,
    "top_p 0.9": replace(PLAIN, top_p=0.9),
    "top_k 50": replace(PLAIN, top_k=50),
    "min_p 0.05": replace(PLAIN, min_p=0.05),
    "penalties": replace(PENALISED, temperature=0.0),
    "logprobs 5": replace(PLAIN, temperature=0.0, logprobs=5),
    "all of these": replace(PENALISED, top_p=0.9, top_k=50, min_p=0.05, logprobs=5),
}


class Share:
    """A runner, and the seconds that its sampler took."""

    def __init__(self, runner: ModelRunner, rows: int, steps: int, sampler: list[float]) -> None:
        self._runner = runner
        self._rows = [Row(row) for row in range(rows)]
        self._per_row = -(-(PROMPT + steps) // BLOCK)
        self._step = 0
        self._started = False
        self._sampler = sampler
        runner.allocate(rows * self._per_row + 1)

    def measure(self, params: SamplingParams, steps: int) -> tuple[float, float]:
        """(seconds of a step, of which in the sampler): medians over `steps` steps that decode all rows."""
        self._prefill(params)
        self._sampler.clear()
        whole = []
        for done in range(steps):
            works = tuple(RowWork(row, PROMPT + done, 1, True, ((),), (row,)) for row in self._rows)
            before = time.thread_time()
            self._run(StepPlan(self._step, works))
            whole.append(time.thread_time() - before)
        return statistics.median(whole), statistics.median(self._sampler)

    def _prefill(self, params: SamplingParams) -> None:
        tokens = torch.randint(1000, 40000, (len(self._rows), PROMPT), generator=torch.Generator().manual_seed(0))
        starts = tuple(
            RowStart(row, tokens[row].tolist(), PROMPT, 0, replace(params, seed=row), (self._blocks(row),))
            for row in self._rows
        )
        works = tuple(RowWork(row, 0, PROMPT, False, ((),), (row,)) for row in self._rows)
        ended = tuple(self._rows) if self._started else ()
        self._started = True
        self._run(StepPlan(self._step, works, ended=ended, started=starts))

    def _blocks(self, row: Row) -> tuple[BlockId, ...]:
        return tuple(BlockId(1 + row * self._per_row + index) for index in range(self._per_row))

    def _run(self, plan: StepPlan) -> None:
        self._step += 1
        self._runner.launch(plan)
        self._runner.collect()


def timed(seconds: list[float]) -> Callable[[Tensor, SamplingBatch], Samples]:
    """The sampler; each call adds the seconds that it took."""

    def timed_sample(logits: Tensor, batch: SamplingBatch) -> Samples:
        before = time.thread_time()
        samples = sample(logits, batch)
        seconds.append(time.thread_time() - before)
        return samples

    return timed_sample


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.sampling_share", description=__doc__)
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--steps", type=int, default=10)
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kvik"
    model = find_model_files(local_model(DEMO, cache).path).gguf
    assert model is not None
    config = EngineConfig(
        source=DEMO,
        model_path=str(model),
        cache_dir=str(model),
        model_name="demo",
        device="cpu",
        max_requests=arguments.rows,
        max_batch_tokens=arguments.rows * PROMPT,
        chunked_prefill_tokens=arguments.rows * PROMPT,
        max_queued_requests=0,
        run_dir=str(model),
    )
    runner = load_runner(config, lambda _: None)
    report = Report(
        "sampling_share",
        {"rows": arguments.rows, "dtype": runner.facts.dtype, "vocabulary": runner.facts.vocab_size},
    )
    seconds: list[float] = []
    share = Share(runner, arguments.rows, arguments.steps, seconds)
    with patch("kvik_engine.runner.runner.sample", timed(seconds)):
        for name, params in KINDS.items():
            step, sampler = share.measure(params, arguments.steps)
            report.line(name, f"{sampler / step:.1%} of {step * 1e3:.0f} ms", sampler / step, most=WANTED)
    report.write()
    return 0


if __name__ == "__main__":
    sys.exit(main())
