"""Log probabilities as the API reports them: of the model's own logits, before any parameter changes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kvik_engine.sampling import cpu_logprobs
from kvik_engine.sampling.batch import SamplingRow


@dataclass(frozen=True, slots=True)
class RawLogprobs:
    """Of the rows that asked for logprobs; fp32."""

    rows: Tensor
    """int64: their places among the step's rows."""
    logits: Tensor
    """[asking rows, vocabulary]."""
    total: Tensor
    """[asking rows, 1]: logarithm of the sum of their exponentials."""
    top_values: Tensor
    """[asking rows, most alternatives asked], falling."""
    top_tokens: Tensor

    def of(self, tokens: Tensor) -> Tensor:
        """The logprob of each asking row's token; `tokens` has one for every row of the step."""
        return (self.logits.gather(1, tokens[self.rows][:, None]) - self.total)[:, 0]


def raw_logprobs(logits: Tensor, rows: Sequence[SamplingRow]) -> RawLogprobs | None:
    """None when no row asked. fp32 [rows, vocabulary], unchanged."""
    asking = [index for index, row in enumerate(rows) if row.params.listed is not None]
    if not asking:
        return None
    at = torch.tensor(asking, device=logits.device)
    some = logits[at]
    most = min(some.shape[1], max(rows[index].params.listed or 0 for index in asking))
    if logits.device.type == "cpu":
        total, values, tokens = cpu_logprobs.most_likely(some, most)
    else:
        total = some.logsumexp(dim=-1, keepdim=True)
        values, tokens = some.topk(most, dim=-1)
    return RawLogprobs(at, some, total, values - total, tokens)
