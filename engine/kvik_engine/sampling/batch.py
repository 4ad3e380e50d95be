"""What the sampler needs of one step's rows: host-side parameters, and tensors on the device beside the logits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from kvik_engine.params import SamplingParams


@dataclass(frozen=True, slots=True)
class SamplingRow:
    """What stays as it is from sample to sample of a row."""

    params: SamplingParams
    choice: int
    prompt_length: int


@dataclass(frozen=True, slots=True)
class SamplingBatch:
    """All rows of a step that sample, in the order of the plan."""

    rows: Sequence[SamplingRow]
    lengths: Sequence[int]
    """Tokens known of each row before its sample: prompt and outputs."""
    tokens: Tensor
    """int64 [rows that have penalties, at least the longest of them]: the tokens of each; what follows its length is
    undefined."""

    @property
    def positions(self) -> list[int]:
        """Output position of each row's sample, from 0."""
        return [length - row.prompt_length for row, length in zip(self.rows, self.lengths, strict=True)]


def penalised(params: SamplingParams) -> bool:
    """Whether the tokens so far change the next distribution."""
    return params.presence_penalty != 0 or params.frequency_penalty != 0 or params.repetition_penalty != 1


@dataclass(frozen=True, slots=True)
class Samples:
    """Device tensors, one entry a row."""

    tokens: Tensor
    """int64 [rows]."""
    finite: Tensor
    """bool [rows]: false when the row's logits held NaN or infinity; its token is then 0."""
    logprobs: Tensor | None
    """fp32 [rows with logprobs], of the sampled token."""
    top_logprobs: Tensor | None
    """fp32 [rows with logprobs, most alternatives asked], falling."""
    top_tokens: Tensor | None
    """int64, of the same shape."""
