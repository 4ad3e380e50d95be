"""The KV pool on the device: one buffer, so that copy, swap, disk and transfer move one region a block.

Layout [blocks + 1, layers, 2, kv_heads, block_tokens, head_dim]; block 0 is the scratch block of padded rows.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class LayerCache:
    """Strided views of one layer: keys and values, each [blocks + 1, kv_heads, block_tokens, head_dim]."""

    keys: Tensor
    values: Tensor


class KVCache:
    """Owns the buffer. All of it is zero at first, so a slot that was never written is at least finite."""

    def __init__(
        self,
        *,
        blocks: int,
        layers: int,
        kv_heads: int,
        block_tokens: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.block_tokens = block_tokens
        self.buffer = _zeros((blocks + 1, layers, 2, kv_heads, block_tokens, head_dim), dtype, device)
        self.layers = [LayerCache(self.buffer[:, layer, 0], self.buffer[:, layer, 1]) for layer in range(layers)]

    @property
    def bytes(self) -> int:
        return self.buffer.numel() * self.buffer.element_size()

    @property
    def regions(self) -> Tensor:
        """All blocks as bytes, uint8 [blocks + 1, block bytes]: what swap, disk and transfer move."""
        return self.buffer.view(self.buffer.shape[0], -1).view(torch.uint8)

    def copy_blocks(self, sources: Tensor, targets: Tensor) -> None:
        """Copy whole blocks, all layers: int64 [copies] each, on the device. All reads happen before all writes."""
        self.buffer.index_copy_(0, targets, self.buffer.index_select(0, sources))


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros; on a CPU from anonymous pages that take memory only once they are written."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    size = dtype.itemsize
    for extent in shape:
        size *= extent
    return torch.frombuffer(mmap.mmap(-1, size), dtype=dtype).view(shape)
