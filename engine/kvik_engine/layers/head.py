"""Hidden states to logits, always in fp32.

A logit of 25 rounded to bfloat16 is off by up to 0.06: likely tokens tie and probabilities move by several per cent. So
the product is never rounded to the model's dtype.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


class LanguageHead:
    """Weight [vocabulary, hidden], often the embedding's own."""

    def __init__(self, weight: Tensor) -> None:
        self.weight = weight

    def __call__(self, hidden: Tensor) -> Tensor:
        """[rows, hidden] -> fp32 [rows, vocabulary]."""
        if self.weight.dtype == torch.float32:
            return F.linear(hidden, self.weight)
        if hidden.device.type != "cpu":
            return torch.mm(hidden, self.weight.t(), out_dtype=torch.float32)
        # CPU products have no wider output. A second pass subtracts the rounded product before it rounds, so that it
        # yields what the first one lost; an fp32 copy of the weight would cost more time in company, and its memory.
        rounded = F.linear(hidden, self.weight)
        lost = torch.addmm(rounded, hidden, self.weight.t(), beta=-1)
        return rounded.float().add_(lost)
