"""What another order of the weights saves on a CPU, on the embedded model in bf16: part of `make bench`.

The model is loaded twice, with its weights as they are and in the order that a measurement at load chooses. The two
decode in turn and are compared step by step: a figure is the median of the ratios, beside it are the least times.
Times are processor time of one thread, so that other work on the machine shows less.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from unittest.mock import patch

import torch

from bench.demo_rows import DemoRows, load_demo
from bench.report import Report
from kvik_engine.layers.product import PlainProduct
from kvik_engine.params import SamplingParams

ROWS = (1, 8, 16)
PROMPT = 128
GREEDY = SamplingParams(max_tokens=1000, seed=1, temperature=0.0)


def seconds(work: Callable[..., None], *arguments: object) -> float:
    before = time.thread_time()
    work(*arguments)
    return time.thread_time() - before


def compare(report: Report, what: str, pairs: list[tuple[float, float]]) -> None:
    """`pairs`: seconds with plain weights and with those in the chosen order."""
    ratio = statistics.median(chosen / plain for plain, chosen in pairs)
    plain, chosen = (min(column) * 1e3 for column in zip(*pairs, strict=True))
    report.line(what, f"x {ratio:.2f} ({plain:.0f} -> {chosen:.0f} ms)", ratio)


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.linear_paths", description=__doc__)
    parser.add_argument("--steps", type=int, default=40)
    steps: int = parser.parse_args().steps

    torch.set_num_threads(1)
    with patch("kvik_engine.runner.load.choose_products", lambda *_: PlainProduct):
        runners = [load_demo(rows=max(ROWS), prompt=PROMPT, dtype="bf16")]
    runners.append(load_demo(rows=max(ROWS), prompt=PROMPT, dtype="bf16"))
    plain, chosen = (DemoRows(runner, rows=max(ROWS), prompt=PROMPT, steps=steps) for runner in runners)
    report = Report("linear_paths", {"model": "demo", "dtype": "bf16", "prompt": PROMPT, "threads": 1})

    prompts = [(seconds(plain.prefill, 1, GREEDY), seconds(chosen.prefill, 1, GREEDY)) for _ in range(1 + steps // 4)]
    compare(report, f"prompt of {PROMPT} tokens", prompts[1:])
    for rows in ROWS:
        plain.prefill(rows, GREEDY)
        chosen.prefill(rows, GREEDY)
        compare(
            report,
            f"step that decodes {rows} rows",
            [(seconds(plain.decode, done), seconds(chosen.decode, done)) for done in range(steps)],
        )
    report.write()
    return 0


if __name__ == "__main__":
    sys.exit(main())
