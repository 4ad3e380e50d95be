"""What rms_norm must do, in plain torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def naive_rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    dtype: torch.dtype,
    *,
    addend: torch.Tensor | None = None,
) -> torch.Tensor:
    """The truth of `kvik_kernels.rms_norm`; same arguments, any device."""
    if addend is not None:
        x += addend.float()
    return (x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight).to(dtype)
