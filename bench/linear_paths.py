"""What another order of the weights saves on a CPU, and weights of int8, on the embedded model in bf16: part of `make
bench`.

The model is loaded with its weights as they are, in the order that a measurement at load chooses, and in int8 where
this CPU multiplies by that. They decode in turn and are compared step by step: a figure is the median of the ratios,
beside it are the least times. Times are processor time of one thread, so that other work on the machine shows less.
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
from kvik_engine.errors import StartError
from kvik_engine.layers.product import PlainProduct
from kvik_engine.params import SamplingParams
from kvik_engine.runner.linear_paths import PLAIN
from kvik_engine.runner.runner import ModelRunner

ROWS = (1, 8, 16)
PROMPT = 128
GREEDY = SamplingParams(max_tokens=1000, seed=1, temperature=0.0)


def seconds(work: Callable[..., None], *arguments: object) -> float:
    before = time.thread_time()
    work(*arguments)
    return time.thread_time() - before


def compare(report: Report, what: str, rounds: list[dict[str, float]]) -> None:
    """`rounds`: seconds by the weights' kind."""
    plain = min(each[PLAIN] for each in rounds) * 1e3
    for kind in list(rounds[0])[1:]:
        ratio = statistics.median(each[kind] / each[PLAIN] for each in rounds)
        least = min(each[kind] for each in rounds) * 1e3
        report.line(f"{what}, {kind}", f"x {ratio:.2f} ({plain:.0f} -> {least:.0f} ms)", ratio)


def load_each() -> dict[str, ModelRunner]:
    """By the weights' kind."""
    with patch("kvik_engine.runner.load.choose_products", lambda *_: PlainProduct):
        runners = {PLAIN: load_demo(rows=max(ROWS), prompt=PROMPT, dtype="bf16")}
    runners["chosen order"] = load_demo(rows=max(ROWS), prompt=PROMPT, dtype="bf16")
    try:
        runners["int8"] = load_demo(rows=max(ROWS), prompt=PROMPT, dtype="bf16", quantization="int8")
    except StartError as error:
        print(error, file=sys.stderr)
    return runners


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.linear_paths", description=__doc__)
    parser.add_argument("--steps", type=int, default=40)
    steps: int = parser.parse_args().steps

    torch.set_num_threads(1)
    each = {kind: DemoRows(runner, rows=max(ROWS), prompt=PROMPT, steps=steps) for kind, runner in load_each().items()}
    report = Report("linear_paths", {"model": "demo", "dtype": "bf16", "prompt": PROMPT, "threads": 1})

    prompts = [{kind: seconds(rows.prefill, 1, GREEDY) for kind, rows in each.items()} for _ in range(1 + steps // 4)]
    compare(report, f"prompt of {PROMPT} tokens", prompts[1:])
    for count in ROWS:
        for rows in each.values():
            rows.prefill(count, GREEDY)
        decoded = [{kind: seconds(rows.decode, done) for kind, rows in each.items()} for done in range(steps)]
        compare(report, f"step that decodes {count} rows", decoded)
    report.write()
    return 0


if __name__ == "__main__":
    sys.exit(main())
