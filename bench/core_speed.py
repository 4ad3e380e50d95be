"""What the host does for a step, without model and sampler: part of `make bench`.

Plan, input build, settling and the encoded frame, for rows that all decode; then the KV manager's own operations. Times
are processor time of one thread, and the best of a few batches, so that other work on the machine hardly shows.
`--parts` alone says where a step's time goes.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import ParamSpec, TypeVar
from unittest.mock import patch

import torch

from bench.idle_model import BLOCK, OUTPUT, IdleCore, no_sampler
from bench.kv_speed import report_kv
from bench.report import Report
from kvik_engine.simulation.device import H100_8B
from kvik_engine.simulation.simulate import config_of, simulate
from kvik_engine.simulation.workloads import CHAT, faster, generate

ROWS = (1, 16, 64, 256)
MOST_SECONDS = {16: 0.3e-3, 256: 2e-3}
BATCHES = 10
BATCH_STEPS = 20
PARTS_STEPS = 200
PROMPT = 100
WAITING = 1000
LONG = 4000
SIMULATED_STEPS = 10_000
P = ParamSpec("P")
R = TypeVar("R")


def decoding_core(*, rows: int, prompt: int = PROMPT, waiting: int = 0) -> IdleCore:
    """All rows decode and `waiting` requests wait."""
    core = IdleCore(rows=rows, blocks=rows * -(-(prompt + OUTPUT) // BLOCK), queued=waiting)
    core.submit(rows, prompt)
    core.until_all_decode(rows)
    core.submit(waiting, prompt)
    core.step()
    assert len(core.core.scheduler.waiting) == waiting
    return core


def step_seconds(*, rows: int, prompt: int = PROMPT, waiting: int = 0) -> float:
    """Mean over the steps of the best batch."""
    core = decoding_core(rows=rows, prompt=prompt, waiting=waiting)
    means = []
    for _ in range(BATCHES):
        before = time.thread_time()
        for _ in range(BATCH_STEPS):
            core.step()
        means.append((time.thread_time() - before) / BATCH_STEPS)
    return min(means)


def report_steps(report: Report) -> None:
    seconds = {rows: step_seconds(rows=rows) for rows in ROWS}
    for rows, mean in seconds.items():
        report.line(f"step of {rows} rows", f"{mean * 1e3:.3f} ms", mean, most=MOST_SECONDS.get(rows))
    per_row = [(seconds[b] - seconds[a]) / (b - a) for a, b in ((1, 16), (16, 64), (64, 256))]
    report.line(
        "one row more, from 1 to 16, to 64, to 256",
        ", ".join(f"{each * 1e6:.1f}" for each in per_row) + " us",
        per_row[-1] / per_row[-2],
        most=1.5,
    )
    longer = step_seconds(rows=16, prompt=LONG) / step_seconds(rows=16)
    report.line(f"step of 16 rows with {LONG} tokens each against {PROMPT}", f"x {longer:.2f}", longer, most=1.2)
    crowded = step_seconds(rows=64, waiting=WAITING) / step_seconds(rows=64)
    report.line(f"step of 64 rows with {WAITING} requests waiting against none", f"x {crowded:.2f}", crowded, most=1.2)


class Parts:
    """Processor seconds of a step's parts: of the calls that are `timed`, the clock's own time included."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def timed(self, part: str, call: Callable[P, R]) -> Callable[P, R]:
        def timed(*args: P.args, **kwargs: P.kwargs) -> R:
            before = time.thread_time()
            result = call(*args, **kwargs)
            self.seconds[part] = self.seconds.get(part, 0.0) + time.thread_time() - before
            return result

        return timed

    @contextmanager
    def of(self, core: IdleCore) -> Iterator[None]:
        """Time the parts of this core within."""
        loop, scheduler, runner = core.core, core.core.scheduler, core.runner
        with ExitStack() as stack:
            for part, owner, name in (
                ("plan", scheduler, "plan"),
                ("rows, inputs and the empty model and sampler", runner, "launch"),
                ("samples to the host", runner, "collect"),
                ("settle", scheduler, "settle"),
                ("counters", loop.stats, "snapshot"),
                ("frame encoded", core.channel, "send"),
                ("whole step", loop, "step"),
            ):
                stack.enter_context(patch.object(owner, name, self.timed(part, getattr(owner, name))))
            yield


def report_parts(report: Report) -> None:
    for rows in MOST_SECONDS:
        core, parts = decoding_core(rows=rows), Parts()
        with parts.of(core):
            for _ in range(PARTS_STEPS):
                core.step()
        whole = parts.seconds.pop("whole step")
        parts.seconds["news, gate and the loop itself"] = whole - sum(parts.seconds.values())
        for part, seconds in parts.seconds.items():
            each = seconds / PARTS_STEPS
            report.line(f"of a step of {rows} rows: {part}", f"{each * 1e3:.3f} ms, {seconds / whole:.0%}", each)


def report_simulator(report: Report) -> None:
    """The simulator runs the real scheduler and KV manager; at about 16 running requests."""
    settings = {"max_requests": 64, "max_batch_tokens": 4096, "chunked_prefill_tokens": 512, "max_queued_requests": 256}
    trace = generate(faster(CHAT, 2.4), seconds=160.0, seed=0)
    before = time.thread_time()
    outcome = simulate(trace, H100_8B, config_of(H100_8B, **settings), max_steps=SIMULATED_STEPS)
    seconds = (time.thread_time() - before) * 100_000 / outcome.steps
    report.line("100,000 simulated steps", f"{seconds:.0f} s", seconds, most=60.0)


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.core_speed", description=__doc__)
    parser.add_argument("--parts", action="store_true", help="only where a step's time goes")
    only_parts = parser.parse_args().parts
    torch.set_num_threads(1)
    report = Report("core_speed", {"prompt tokens": PROMPT, "steps": BATCH_STEPS})
    with no_sampler():
        if not only_parts:
            report_steps(report)
        report_parts(report)
    if not only_parts:
        report_kv(report)
        report_simulator(report)
    report.write()
    return 0


if __name__ == "__main__":
    sys.exit(main())
