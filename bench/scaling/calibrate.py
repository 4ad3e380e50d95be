"""Measures on the real engine what a simulated pod has to know of it: `python -m bench.scaling.calibrate`.

The embedded model in one thread, on the clock of that thread's CPU time. On a machine with nothing else to do, what it
prints belongs into traces.DEMO_POD.
"""

import statistics
from collections.abc import Sequence

import torch

from bench.claims.engine import Arrival, Engine, Served, demo_config, demo_runner
from bench.claims.workload import prompt
from bench.report import machine

PROMPT_TOKENS = 1000
FEW, MANY = 4, 16
CONTEXT_TOKENS = 200
OUTPUT_TOKENS = 24
ROUNDS = 3


def main() -> None:
    torch.set_num_threads(1)
    print(f"the embedded model on {machine()}, one thread")
    rate = statistics.median(prefill_rate(seed) for seed in range(ROUNDS))
    few = statistics.median(step_seconds(FEW, seed) for seed in range(ROUNDS))
    many = statistics.median(step_seconds(MANY, seed) for seed in range(ROUNDS))
    row = (many - few) / (MANY - FEW)
    print(f"prefill_tokens_per_second={rate:.0f}  (a prompt of {PROMPT_TOKENS} tokens alone)")
    print(
        f"step_seconds={few - FEW * row:.4f}  row_seconds={row:.4f}  ({FEW} and {MANY} rows of {CONTEXT_TOKENS} tokens)"
    )


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
