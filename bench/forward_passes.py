"""What recordings of forward passes save on a CPU, on the embedded model in bf16: part of `make bench`.

The model is loaded twice, and decodes in turn from recordings and without. A figure is the median of the ratios, beside
it are the medians. Times are those of the clock, as threads work beside each other: nothing else may be running.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from unittest.mock import patch

import torch

from bench.demo_rows import DemoRows, load_demo
from bench.report import Report
from kvik_engine.params import SamplingParams

ROWS = (1, 4, 8, 16)
PROMPT = 128
GREEDY = SamplingParams(max_tokens=1000, seed=1, temperature=0.0)


def seconds(rows: DemoRows, done: int) -> float:
    before = time.perf_counter()
    rows.decode(done)
    return time.perf_counter() - before


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.forward_passes", description=__doc__)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--threads", type=int, default=None, help="as many as an engine takes when not given")
    options = parser.parse_args()
    steps: int = options.steps

    with patch("kvik_engine.runner.load.choose_forward", lambda _, model: model.forward):
        plain = load_demo(rows=max(ROWS), prompt=PROMPT, dtype="bf16")
    recorded = load_demo(rows=max(ROWS), prompt=PROMPT, dtype="bf16")
    torch.set_num_threads(options.threads or torch.get_num_threads())
    without, by = (DemoRows(each, rows=max(ROWS), prompt=PROMPT, steps=steps) for each in (plain, recorded))
    threads = torch.get_num_threads()
    report = Report("forward_passes", {"model": "demo", "dtype": "bf16", "prompt": PROMPT, "threads": threads})

    for count in ROWS:
        for rows in (without, by):
            rows.prefill(count, GREEDY)
        pairs = [(seconds(without, done), seconds(by, done)) for done in range(steps)][2:]
        ratio = statistics.median(after / before for before, after in pairs)
        before, after = (statistics.median(times) * 1e3 for times in zip(*pairs, strict=True))
        report.line(f"step that decodes {count} rows", f"x {ratio:.2f} ({before:.1f} -> {after:.1f} ms)", ratio)
    report.write()
    return 0


if __name__ == "__main__":
    sys.exit(main())
