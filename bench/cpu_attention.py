"""What attention and writes in place save on a CPU, on the embedded model in bf16: part of `make bench`.

One model decodes the same rows, every other step by torch, over gathered keys and values, and the steps between with
the kernels of kvik_kernels.cpu. Steps are compared in pairs: a figure is the median of the ratios, beside it are the
least times. Times are processor time of one thread, so that other work on the machine shows less; with --threads above
1 they are wall clock.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable

import torch

from bench.demo_rows import DemoRows, load_demo
from bench.report import Report
from kvik_engine.attention.backend import AttentionBackend
from kvik_engine.attention.cpu_backend import CpuBackend
from kvik_engine.params import SamplingParams
from kvik_engine.runner.runner import ModelRunner
from kvik_kernels.cpu.library import LibraryUnavailable, load_library

ROWS = (1, 8, 16)
CONTEXTS = (128, 576)
GREEDY = SamplingParams(max_tokens=1000, seed=1, temperature=0.0)


def compare(report: Report, what: str, pairs: list[tuple[float, float]]) -> None:
    """`pairs`: seconds by torch and by the kernels."""
    ratio = statistics.median(kernels / gathered for gathered, kernels in pairs)
    gathered, kernels = (min(column) * 1e3 for column in zip(*pairs, strict=True))
    report.line(what, f"x {ratio:.2f} ({gathered:.0f} -> {kernels:.0f} ms)", ratio)


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.cpu_attention", description=__doc__)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS)
    parser.add_argument("--contexts", type=int, nargs="+", default=CONTEXTS)
    options = parser.parse_args()
    clock: Callable[[], float] = time.thread_time if options.threads == 1 else time.perf_counter

    try:
        kernels = load_library().best.name.lower()
    except LibraryUnavailable as reason:
        parser.exit(1, f"nothing to compare with torch: the kernels cannot be used: {reason}\n")
    facts = {"model": "demo", "dtype": "bf16", "threads": options.threads, "kernels": kernels}
    report = Report("cpu_attention", facts)
    most = max(options.rows)
    for context in options.contexts:
        runner = load_demo(rows=most, prompt=context, dtype="bf16")
        if runner._backend.name == "cpu":
            parser.exit(1, "nothing to compare with torch: the engine does not use the kernels for this model\n")
        torch.set_num_threads(options.threads)
        backends = CpuBackend(), runner._backend
        demo = DemoRows(runner, rows=most, prompt=context, steps=2 * options.steps)

        def seconds(backend: AttentionBackend, done: int, demo: DemoRows = demo, runner: ModelRunner = runner) -> float:
            runner._backend = backend
            before = clock()
            demo.decode(done)
            return clock() - before

        for rows in options.rows:
            demo.prefill(rows, GREEDY)
            pairs = [
                (seconds(backends[0], done), seconds(backends[1], done + 1)) for done in range(0, 2 * options.steps, 2)
            ]
            compare(report, f"{rows} rows with {context} tokens each", pairs)
    report.write()
    return 0


if __name__ == "__main__":
    sys.exit(main())
