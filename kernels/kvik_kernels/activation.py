"""The activations of gates that kernels know."""

from __future__ import annotations

from enum import IntEnum


class Activation(IntEnum):
    """`enum Activation` of cpu/elementwise.h."""

    SILU = 0
    GELU_TANH = 1
    """The tanh approximation of GELU (arXiv 1606.08415)."""
