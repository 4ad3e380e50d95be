"""Log probabilities as the API reports them: of the model's own logits, before any parameter changes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kvik_engine.sampling.batch import SamplingRow


@dataclass(frozen=True, slots=True)
class RawLogprobs:
    """Of the rows that asked for logprobs; fp32."""

    rows: Tensor
    """int64: their places among the step's rows."""
    values: Tensor
    """[asking rows, vocabulary]."""
    top_values: Tensor
    """[asking rows, most alternatives asked], falling."""
    top_tokens: Tensor

    def of(self, tokens: Tensor) -> Tensor:
        """The logprob of each asking row's token; `tokens` has one for every row of the step."""
        return self.values.gather(1, tokens[self.rows][:, None])[:, 0]


def raw_logprobs(logits: Tensor, rows: Sequence[SamplingRow]) -> RawLogprobs | None:
    """None when no row asked. fp32 [rows, vocabulary], unchanged."""
    asking = [index for index, row in enumerate(rows) if row.params.logprobs is not None]
    if not asking:
        return None
    at = torch.tensor(asking, device=logits.device)
    values = logits[at].log_softmax(dim=-1)
    most = max(rows[index].params.logprobs or 0 for index in asking)
    top = values.topk(min(most, values.shape[1]), dim=-1)
    return RawLogprobs(at, values, top.values, top.indices)
