"""What rotary must do, in plain torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def naive_rotary(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    """The truth of `kvik_kernels.rotary`; same arguments, any device."""
    import torch

    first, second = x.float().chunk(2, dim=-1)
    x.copy_(torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1))
