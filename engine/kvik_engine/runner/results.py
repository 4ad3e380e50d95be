"""A launched step's samples on their way to the host."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from kvik_engine.sampling.batch import Samples, SamplingRow
from kvik_engine.step import Row, Sample, StepResult, TokenLogprob

NOT_FINITE = "the model's output for this request was not finite"


class PendingResult:
    """Copies results to the host without stopping the device; `wait` blocks until this step alone is done."""

    def __init__(self, step: int, device: torch.device, started: float) -> None:
        self._step = step
        self._started = started
        self._seconds: float | None = None
        self._rows: Sequence[Row] = ()
        self._described: Sequence[SamplingRow] = ()
        self._samples: Samples | None = None
        self._begin, self._end = _timers(device)

    def sampled(self, rows: Sequence[Row], described: Sequence[SamplingRow], samples: Samples) -> None:
        """Start the copies; on a CPU there is nothing to copy."""
        self._rows = rows
        self._described = described
        self._samples = samples if self._end is None else _on_host(samples)

    def launched(self) -> None:
        """All work of the step has been handed to the device; on a CPU it is done."""
        if self._end is not None:
            self._end.record()
        else:
            self._seconds = time.perf_counter() - self._started

    def wait(self) -> StepResult:
        """The step's result."""
        if self._begin is not None and self._end is not None:
            self._end.synchronize()
            self._seconds = self._begin.elapsed_time(self._end) / 1000
        assert self._seconds is not None, "launched comes first"
        samples = () if self._samples is None else tuple(self._listed(self._samples))
        return StepResult(step=self._step, samples=samples, seconds=self._seconds)

    def _listed(self, samples: Samples) -> Iterable[Sample]:
        if samples.logprobs is None and all(samples.finite.tolist()):
            return map(Sample, self._rows, samples.tokens.tolist())
        return self._with_logprobs_and_errors(samples)

    def _with_logprobs_and_errors(self, samples: Samples) -> Iterator[Sample]:
        logprobs = iter([] if samples.logprobs is None else samples.logprobs.tolist())
        top_logprobs = iter([] if samples.top_logprobs is None else samples.top_logprobs.tolist())
        top_tokens = iter([] if samples.top_tokens is None else samples.top_tokens.tolist())
        rows = zip(self._rows, self._described, samples.tokens.tolist(), samples.finite.tolist(), strict=True)
        for row, described, token, finite in rows:
            logprob: float | None = None
            top: tuple[TokenLogprob, ...] = ()
            listed = described.params.listed
            if listed is not None:
                logprob = next(logprobs)
                best = zip(next(top_tokens), next(top_logprobs), strict=True)
                top = tuple(TokenLogprob(*pair) for pair in best)[:listed]
            yield Sample(row, token, logprob, top) if finite else Sample(row, token, error=NOT_FINITE)


def _timers(device: torch.device) -> tuple[torch.cuda.Event | None, torch.cuda.Event | None]:
    if device.type == "cpu":
        return None, None
    begin = torch.cuda.Event(enable_timing=True)
    begin.record()
    return begin, torch.cuda.Event(enable_timing=True)


def _on_host(samples: Samples) -> Samples:
    return Samples(
        tokens=_to_host(samples.tokens),
        finite=_to_host(samples.finite),
        logprobs=None if samples.logprobs is None else _to_host(samples.logprobs),
        top_logprobs=None if samples.top_logprobs is None else _to_host(samples.top_logprobs),
        top_tokens=None if samples.top_tokens is None else _to_host(samples.top_tokens),
    )


def _to_host(tensor: Tensor) -> Tensor:
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return host.copy_(tensor, non_blocking=True)
