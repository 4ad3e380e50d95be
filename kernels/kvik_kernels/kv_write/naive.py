"""What kv_write must do, in plain torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvik_kernels.quantised import keep

if TYPE_CHECKING:
    import torch


def naive_kv_write(
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slots: torch.Tensor,
    *,
    k_scales: torch.Tensor | None = None,
    v_scales: torch.Tensor | None = None,
) -> None:
    """The truth of `kvik_kernels.kv_write`; same arguments, any device and dtype."""
    block_tokens = k_cache.shape[2]
    blocks, offsets = slots // block_tokens, slots % block_tokens
    for vectors, cache, scales in ((k, k_cache, k_scales), (v, v_cache, v_scales)):
        # The indices stand on both sides of the head dimension, so torch puts the token dimension first, as in k and v.
        cache[blocks, :, offsets], kept = keep(vectors, cache.dtype, scaled=scales is not None)
        if scales is not None and kept is not None:
            scales[blocks, :, offsets] = kept
