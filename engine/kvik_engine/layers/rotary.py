"""Rotary position embedding (Su et al., arXiv 2104.09864) in the half-split layout of Hugging Face checkpoints."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from kvik_engine.layers.elementwise import BY_TORCH, Elementwise
from kvik_engine.layers.rope_scaling import LinearScaling, Llama3Scaling, RopeScaling, YarnScaling
from kvik_engine.layers.tensors import TensorSource


@dataclass(frozen=True, slots=True)
class RotaryTables:
    """Cosines and sines of one step's positions: fp32 [tokens, 1, head_dim / 2] each."""

    cos: Tensor
    sin: Tensor
    elementwise: Elementwise

    def rotate(self, x: Tensor) -> Tensor:
        """Rotate pairs (i, i + head_dim / 2) of each head in fp32: [tokens, heads, head_dim] -> the same, maybe in the
        memory of x."""
        return self.elementwise.rotate(x, self.cos, self.sin)


class Rotary:
    """Frequencies of a model; angles are computed in fp32 for the step's positions only, so no table grows with the
    context."""

    def __init__(
        self, inverse_frequencies: Tensor, magnitude: float = 1.0, elementwise: Elementwise = BY_TORCH
    ) -> None:
        self._inverse_frequencies = inverse_frequencies
        self._magnitude = magnitude
        self._elementwise = elementwise

    @classmethod
    def take(cls, tensors: TensorSource, head_dim: int, theta: float, scaling: RopeScaling | None) -> Rotary:
        frequencies = scaled_frequencies(head_dim, theta, scaling)
        if tensors.has("rope_freqs.weight"):
            # GGUF files state Llama 3's stretching as one divisor a frequency.
            divisors = tensors.take("rope_freqs.weight", (head_dim // 2,))
            frequencies = frequencies / divisors.to("cpu", torch.float32)
        magnitude = scaling.magnitude if isinstance(scaling, YarnScaling) else 1.0
        return cls(frequencies.to(tensors.device), magnitude, tensors.elementwise)

    def tables(self, positions: Tensor) -> RotaryTables:
        """positions: int64 [tokens]."""
        angles = positions.to(torch.float32)[:, None, None] * self._inverse_frequencies
        cos, sin = angles.cos(), angles.sin()
        if self._magnitude != 1.0:
            cos, sin = cos * self._magnitude, sin * self._magnitude
        return RotaryTables(cos, sin, self._elementwise)


def scaled_frequencies(head_dim: int, theta: float, scaling: RopeScaling | None) -> Tensor:
    """fp32 [head_dim / 2] on the CPU: theta^(-2i / head_dim), stretched by `scaling`."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).to(torch.float32) / head_dim
    frequencies = 1.0 / theta**exponents
    if isinstance(scaling, LinearScaling):
        return frequencies / scaling.factor
    if isinstance(scaling, Llama3Scaling):
        return _llama3(frequencies, scaling)
    if isinstance(scaling, YarnScaling):
        return _yarn(frequencies, theta, scaling)
    return frequencies


def _llama3(frequencies: Tensor, scaling: Llama3Scaling) -> Tensor:
    """Wavelengths above original/low are divided by the factor, below original/high kept, blended in between."""
    wavelengths = 2 * math.pi / frequencies
    blend = (scaling.original_context / wavelengths - scaling.low_freq_factor) / (
        scaling.high_freq_factor - scaling.low_freq_factor
    )
    blend = blend.clamp(0.0, 1.0)
    return (1 - blend) * frequencies / scaling.factor + blend * frequencies


def _yarn(frequencies: Tensor, theta: float, scaling: YarnScaling) -> Tensor:
    """Divided by the factor above the dimension that turns beta_slow times, kept below that of beta_fast."""
    pairs = frequencies.shape[0]

    def dimension(turns: float) -> float:
        return pairs * math.log(scaling.original_context / (turns * 2 * math.pi)) / math.log(theta)

    first, last = dimension(scaling.beta_fast), dimension(scaling.beta_slow)
    if scaling.whole_dims:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, 2 * pairs - 1)
    stretched = ((torch.arange(pairs, dtype=torch.float32) - first) / max(last - first, 1e-3)).clamp(0.0, 1.0)
    return stretched * frequencies / scaling.factor + (1 - stretched) * frequencies
