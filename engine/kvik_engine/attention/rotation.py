"""Rotated keys: what is large in a few elements of every key is spread over all of them before it is quantised.

A query is rotated with the keys, so that their products are the same. Rotating comes after the positions' rotation,
which cannot be exchanged with it, so no weight can take it over.
"""

from __future__ import annotations

import torch
from torch import Tensor


class Rotation:
    """Products with a fixed Hadamard matrix: of the largest power of two that divides the width, again and again.

    Its elements are 1 or -1, times a power of two, exact in every type. Where that cannot be the root of the order, it
    is a little less, and what is missing of the product of query and key belongs to the scale of attention.
    """

    def __init__(self, width: int, dtype: torch.dtype, device: torch.device) -> None:
        order = width & -width
        halvings = (order.bit_length() - 1) // 2
        matrix = torch.ones(1, 1)
        while matrix.shape[0] < order:
            matrix = torch.cat((torch.cat((matrix, matrix), 1), torch.cat((matrix, -matrix), 1)))
        self._matrix = (matrix * 2.0**-halvings).to(dtype).to(device)
        self.scale = 4.0**halvings / order
        """What a product of a rotated query and key is to be multiplied by."""

    def __call__(self, vectors: Tensor) -> Tensor:
        """[..., width] -> the same, contiguous."""
        order = self._matrix.shape[0]
        return (vectors.reshape(-1, order) @ self._matrix).view(vectors.shape)
