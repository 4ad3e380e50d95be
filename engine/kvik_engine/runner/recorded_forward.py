"""A model's forward pass on a CPU, recorded once for each small number of tokens and then made again: what CUDA graphs
are on GPUs.

A step of one row makes some three hundred calls that take microseconds each; Python between them takes about as long.
"""

from __future__ import annotations

import logging

from torch import Tensor

from kvik_engine.attention.backend import StepAttention
from kvik_engine.attention.cpu_backend import CpuStep, Replayed
from kvik_engine.models.registry import Model
from kvik_engine.runner.recorded_step import Buffers, RecordedStep, Unrecordable
from kvik_kernels.cpu.library import Library

log = logging.getLogger(__name__)

MOST_TOKENS = 16
"""Steps of more tokens are not recorded: their products take many times what Python does between them."""


class RecordedForward:
    """See runner.Forward. A model that cannot be recorded computes as it does without."""

    def __init__(self, model: Model, library: Library) -> None:
        """`model`: on the kernels of `library`; what it calls depends on nothing but the number of tokens."""
        self._model = model
        self._library = library
        self._buffers = Buffers(MOST_TOKENS)
        self._steps: dict[int, RecordedStep] = {}
        """By the number of tokens."""
        self._recordable = True

    def __call__(self, token_ids: Tensor, positions: Tensor, attention: StepAttention) -> Tensor:
        tokens = len(token_ids)
        replayed = _replayed(attention) if self._recordable and tokens <= MOST_TOKENS else None
        if replayed is None:
            return self._model.forward(token_ids, positions, attention)
        step = self._steps.get(tokens)
        if step is not None and step.cache is attention.cache:
            return step.replay(token_ids, positions, replayed)
        return self._record(token_ids, positions, attention, replayed)

    def _record(
        self, token_ids: Tensor, positions: Tensor, attention: StepAttention, replayed: list[Replayed]
    ) -> Tensor:
        step = RecordedStep(self._library, self._buffers, attention.cache, token_ids, positions, replayed)
        try:
            hidden = step.record(self._model, attention)
        except Unrecordable as reason:
            log.info("steps are not recorded: %s", reason)
            self._recordable = False
            self._steps.clear()
            return self._model.forward(token_ids, positions, attention)
        self._steps[len(token_ids)] = step
        return hidden


def _replayed(attention: StepAttention) -> list[Replayed] | None:
    """By KV group; None where torch computes any of them."""
    found = [group.replayed if isinstance(group, CpuStep) else None for group in attention.groups]
    known = [each for each in found if each is not None]
    return known if len(known) == len(found) else None
