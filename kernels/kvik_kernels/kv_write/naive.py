"""What kv_write must do, in plain torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def naive_kv_write(
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slots: torch.Tensor,
) -> None:
    """The truth of `kvik_kernels.kv_write`; same arguments, any device and dtype."""
    block_tokens = k_cache.shape[2]
    blocks, offsets = slots // block_tokens, slots % block_tokens
    # The indices stand on both sides of the head dimension, so torch puts the token dimension first, as in k and v.
    k_cache[blocks, :, offsets] = k
    v_cache[blocks, :, offsets] = v
