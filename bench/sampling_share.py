"""What share of a step the sampler takes, on the embedded model with 16 rows: part of `make bench`.

For each kind of sampling 16 rows decode: the sampler's time over the whole step's. Both are processor time of one
thread, so that other work on the machine does not show. The prompts are random tokens: what the model says of them is
flatter than after text, which is the hard case for top_p.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from unittest.mock import patch

import torch
from torch import Tensor

from bench.demo_rows import DemoRows, load_demo
from bench.report import Report
from kvik_engine.params import SamplingParams
from kvik_engine.sampling.batch import Samples, SamplingBatch
from kvik_engine.sampling.sampler import sample

PROMPT = 64
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


def measure(demo: DemoRows, sampler: list[float], params: SamplingParams, rows: int, steps: int) -> tuple[float, float]:
    """(seconds of a step, of which in the sampler): medians over `steps` steps that decode all rows. The sampler adds
    its own to `sampler`."""
    demo.prefill(rows, params)
    sampler.clear()
    whole = []
    for done in range(steps):
        before = time.thread_time()
        demo.decode(done)
        whole.append(time.thread_time() - before)
    return statistics.median(whole), statistics.median(sampler)


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
    runner = load_demo(rows=arguments.rows, prompt=PROMPT)
    report = Report(
        "sampling_share",
        {"rows": arguments.rows, "dtype": runner.facts.dtype, "vocabulary": runner.facts.vocab_size},
    )
    seconds: list[float] = []
    demo = DemoRows(runner, rows=arguments.rows, prompt=PROMPT, steps=arguments.steps)
    with patch("kvik_engine.runner.runner.sample", timed(seconds)):
        for name, params in KINDS.items():
            step, sampler = measure(demo, seconds, params, arguments.rows, arguments.steps)
            report.line(name, f"{sampler / step:.1%} of {step * 1e3:.0f} ms", sampler / step, most=WANTED)
    report.write()
    return 0


if __name__ == "__main__":
    sys.exit(main())
