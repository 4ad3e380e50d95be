"""The KV pool on the device: one buffer, so that copy, swap, disk and transfer move one region a block.

[blocks + 1, slots, parts, heads, block_tokens, width], see attention.kv_layout; block 0 is the scratch block of padded
rows.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass

import torch
from torch import Tensor

from kvik_engine.attention.kv_layout import KVLayout


@dataclass(frozen=True, slots=True)
class LayerCache:
    """Strided views of one layer: keys and values, [blocks + 1, heads, block_tokens, width] and [..., value_width].

    Where `latent`, the values are the beginnings of the keys.
    """

    keys: Tensor
    values: Tensor
    latent: bool


class KVCache:
    """Owns the buffer. All of it is zero at first, so a slot that was never written is at least finite."""

    def __init__(self, *, blocks: int, layout: KVLayout, dtype: torch.dtype, device: torch.device) -> None:
        self.layout = layout
        self.block_tokens = layout.block_tokens
        shape = (blocks + 1, layout.slots, layout.parts, layout.heads, layout.block_tokens, layout.width)
        self.buffer = _zeros(shape, dtype, device)
        self.layers = [self._layer(place.slot) for place in layout.places]

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

    def _layer(self, slot: int) -> LayerCache:
        parts = self.buffer[:, slot]
        return LayerCache(parts[:, 0], parts[:, -1, ..., : self.layout.value_width], latent=self.layout.parts == 1)


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros; on a CPU from anonymous pages that take memory only once they are written."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    size = dtype.itemsize
    for extent in shape:
        size *= extent
    return torch.frombuffer(mmap.mmap(-1, size), dtype=dtype).view(shape)
