"""Rows of the embedded model that a benchmark drives step by step, with nothing of the engine around the runner."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import torch

from kvik_engine.cli.sources import DEMO, local_model
from kvik_engine.config import EngineConfig
from kvik_engine.params import SamplingParams
from kvik_engine.runner.load import load_runner
from kvik_engine.runner.runner import ModelRunner
from kvik_engine.step import BlockId, Row, RowStart, RowWork, StepPlan
from kvik_engine.weights.model_files import find_model_files

BLOCK = 16


def load_demo(*, rows: int, prompt: int, dtype: str = "auto", quantization: str = "none") -> ModelRunner:
    """The embedded model, for so many rows that compute prompts of so many tokens in one step."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kvik"
    model = find_model_files(local_model(DEMO, cache).path).gguf
    assert model is not None
    config = EngineConfig(
        source=DEMO,
        model_path=str(model),
        cache_dir=str(model),
        model_name="demo",
        device="cpu",
        dtype=dtype,
        quantization=quantization,
        max_requests=rows,
        max_batch_tokens=rows * prompt,
        chunked_prefill_tokens=rows * prompt,
        max_queued_requests=0,
        run_dir=str(model),
    )
    return load_runner(config, lambda _: None)


class DemoRows:
    """Up to `rows` rows with prompts of random tokens; each may decode `steps` tokens, then begins anew."""

    def __init__(self, runner: ModelRunner, *, rows: int, prompt: int, steps: int) -> None:
        self._runner = runner
        self._prompt = prompt
        self._per_row = -(-(prompt + steps) // BLOCK)
        self._step = 0
        self._rows: list[Row] = []
        runner.allocate(rows * self._per_row + 1)

    def prefill(self, rows: int, params: SamplingParams) -> None:
        """The prompts of so many rows, in one step; the rows before them end."""
        tokens = torch.randint(1000, 40000, (rows, self._prompt), generator=torch.Generator().manual_seed(0))
        ended, self._rows = tuple(self._rows), [Row(row) for row in range(rows)]
        starts = tuple(
            RowStart(row, tokens[row].tolist(), self._prompt, 0, replace(params, seed=row), (self._blocks(row),))
            for row in self._rows
        )
        works = tuple(RowWork(row, 0, self._prompt, False, ((),), (row,)) for row in self._rows)
        self._run(StepPlan(self._step, works, ended=ended, started=starts))

    def decode(self, done: int) -> None:
        """One token more for every row, which has decoded `done`."""
        works = tuple(RowWork(row, self._prompt + done, 1, True, ((),), (row,)) for row in self._rows)
        self._run(StepPlan(self._step, works))

    def _blocks(self, row: Row) -> tuple[BlockId, ...]:
        return tuple(BlockId(1 + row * self._per_row + index) for index in range(self._per_row))

    def _run(self, plan: StepPlan) -> None:
        self._step += 1
        self._runner.launch(plan)
        self._runner.collect()
