"""Hidden states to logits, always in fp32.

A logit of 25 rounded to bfloat16 is off by up to 0.06: likely tokens tie and probabilities move by several per cent. So
the product is never rounded to the model's dtype.
"""

from __future__ import annotations

from torch import Tensor

from kvik_engine.layers.product import Product


class LanguageHead:
    """The product with a weight [vocabulary, hidden]."""

    def __init__(self, product: Product) -> None:
        self.product = product

    def __call__(self, hidden: Tensor) -> Tensor:
        """[rows, hidden] -> fp32 [rows, vocabulary]."""
        return self.product.unrounded(hidden)
