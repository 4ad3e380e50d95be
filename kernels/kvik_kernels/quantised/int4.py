"""Vectors of four bits an element: asymmetric, in groups of 32 elements that share a step and a lowest number.

An element is `lowest + number * step`, its number 0 to 15. A group's 32 numbers lie in 16 bytes: element i in the low
half of byte i, element i + 16 in the high half. Steps and lowest numbers are bfloat16, rounded up and down, so that no
number passes 15 or 0: `[..., groups, 2]`, flattened. A product of a number and a step is exact in float32, so that
dequantising rounds once, with or without a fused multiply-add.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

GROUP = 32
LARGEST = 15.0


def scales_of_vector(width: int) -> int:
    """How many bfloat16 a vector of so many elements has beside them."""
    return 2 * (width // GROUP)


def quantise(finite: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """float32 `[..., width]` of no more than 2**120 -> uint8 `[..., width / 2]` and bfloat16 `[..., 2 * groups]`."""
    import torch

    groups = finite.unflatten(-1, (-1, GROUP))
    lowest = _down(groups.amin(-1))
    wide = lowest.float()
    # Zero may have a sign here.
    steps = up_to_bfloat16((groups.amax(-1) - wide).abs() / LARGEST)
    divisors = steps.float().masked_fill(steps == 0, 1.0)
    numbers = ((groups - wide[..., None]) / divisors[..., None]).round().to(torch.uint8)
    low, high = numbers.split(GROUP // 2, dim=-1)
    return (low | high << 4).flatten(-2), torch.stack((steps, lowest), dim=-1).flatten(-2)


def dequantise(packed: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """What `quantise` gave -> float32 `[..., width]`."""
    import torch

    groups = packed.unflatten(-1, (-1, GROUP // 2))
    numbers = torch.cat((groups & 15, groups >> 4), dim=-1).float()
    steps, lowest = scales.float().unflatten(-1, (-1, 2)).unbind(-1)
    wide: torch.Tensor = numbers * steps[..., None] + lowest[..., None]
    return wide.flatten(-2)


def up_to_bfloat16(numbers: torch.Tensor) -> torch.Tensor:
    """The smallest bfloat16 that is not less: of float32 of at least 0."""
    import torch

    return ((numbers.view(torch.int32) + 0xFFFF) >> 16).to(torch.int16).view(torch.bfloat16)


def _down(numbers: torch.Tensor) -> torch.Tensor:
    """The largest bfloat16 that is not more; 0 without a sign."""
    import torch

    bits = numbers.contiguous().view(torch.int32).masked_fill(numbers == 0, 0)
    return ((bits + (bits < 0) * 0xFFFF) >> 16).to(torch.int16).view(torch.bfloat16)
