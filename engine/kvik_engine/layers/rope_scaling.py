"""How rotary frequencies are stretched to contexts longer than a model was first trained on. Values only."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """Positions are divided by `factor`."""

    factor: float


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Long wavelengths are stretched, short ones kept (Llama 3.1)."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context: int


@dataclass(frozen=True, slots=True)
class YarnScaling:
    """Frequencies that turn less than `beta_slow` times over the original context are divided by `factor`, those that
    turn more than `beta_fast` times kept, and blended in between (YaRN, arXiv 2309.00071)."""

    factor: float
    original_context: int
    beta_fast: float
    beta_slow: float
    magnitude: float
    """Rotated queries and keys are multiplied by it."""
    whole_dims: bool
    """The blend begins and ends at whole dimensions."""


def yarn_magnitude(factor: float, weight: float) -> float:
    """By how much YaRN sharpens attention for a stretching by `factor`: 1 without any."""
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0


RopeScaling = LinearScaling | Llama3Scaling | YarnScaling
