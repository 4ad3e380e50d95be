"""Measures on the real engine what a simulated pod has to know of it: `python -m bench.scaling.calibrate`.

The embedded model in one thread, on the clock of that thread's CPU time, so that other work on the machine makes its
figures little worse. It writes bench/results/pod_calibration.json, which `make scaling-report` takes them from.
"""

import os
import statistics
from collections.abc import Sequence

import torch

from bench.claims.engine import Arrival, Engine, Served, demo_config, demo_runner
from bench.claims.workload import prompt
from bench.report import machine
from bench.scaling.calibration import FILE, Calibration, write

PROMPT_TOKENS = 1000
FEW, MANY = 4, 16
CONTEXT_TOKENS = 200
OUTPUT_TOKENS = 24
ROUNDS = 3


def main() -> None:
    torch.set_num_threads(1)
    busy = os.getloadavg()[0]
    rate = statistics.median(prefill_rate(seed) for seed in range(ROUNDS))
    few = statistics.median(step_seconds(FEW, seed) for seed in range(ROUNDS))
    many = statistics.median(step_seconds(MANY, seed) for seed in range(ROUNDS))
    row = (many - few) / (MANY - FEW)
    measured = Calibration(machine(), round(busy, 1), round(rate), round(few - FEW * row, 4), round(row, 5))
    write(measured)
    print(f"{measured}\nwritten to {FILE}")


def prefill_rate(seed: int) -> float:
    """Prompt tokens a second."""
    (served,) = serve([Arrival(prompt=prompt(PROMPT_TOKENS, seed), output_tokens=1)])
    return PROMPT_TOKENS / served.ttft


def step_seconds(rows: int, seed: int) -> float:
    """Of a step in which all rows decode: the gaps of the row that began last, since all others decode with it."""
    prompts = [prompt(CONTEXT_TOKENS, 100 * seed + row) for row in range(rows)]
    served = serve([Arrival(prompt=tokens, output_tokens=OUTPUT_TOKENS * rows) for tokens in prompts])
    last = max(served, key=lambda one: one.token_times[0])
    return statistics.median(last.gaps[:OUTPUT_TOKENS])


def serve(arrivals: Sequence[Arrival]) -> Sequence[Served]:
    """By an engine with a cold cache, until each has what is measured."""

    def seen(served: Sequence[Served]) -> bool:
        enough = (one.done or len(one.token_times) > OUTPUT_TOKENS for one in served)
        return len(served) == len(arrivals) and all(enough)

    return Engine(demo_runner(), demo_config(blocks=1200)).serve(arrivals, until=seen)


if __name__ == "__main__":
    main()
