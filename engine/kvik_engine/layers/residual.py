"""The sum that goes through all layers. Adding to it waits for the norm that reads it, which does both in one call."""

from __future__ import annotations

from torch import Tensor

from kvik_engine.layers.norm import RMSNorm


class Residual:
    """Of one forward pass. It is fp32: sixty sums go through it, and in bfloat16 their rounding would be a third of all
    error in the logits."""

    def __init__(self, hidden: Tensor) -> None:
        """`hidden`: fp32 [tokens, hidden], which belongs to the residual from then on."""
        self._sum = hidden
        self._addend: Tensor | None = None

    def add(self, addend: Tensor) -> None:
        """[tokens, hidden], in any dtype; every layer reads its norm before it adds again."""
        assert self._addend is None
        self._addend = addend

    def normed(self, norm: RMSNorm) -> Tensor:
        """The norm of all that was added, in the norm's dtype."""
        if self._addend is None:
            return norm(self._sum)
        addend, self._addend = self._addend, None
        return norm.of_sum(self._sum, addend)
