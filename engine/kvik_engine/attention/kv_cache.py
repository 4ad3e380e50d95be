"""The KV pool on the device: one buffer, so that copy, swap, disk and transfer move one region a block, scales and all.

Bytes [blocks + 1, block bytes], see attention.kv_layout; block 0 is the scratch block of padded rows.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass

import torch
from torch import Tensor

from kvik_engine.attention.kv_layout import KVFormat, KVLayout
from kvik_engine.attention.rotation import Rotation
from kvik_kernels.quantised import page_views

STORED = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "int8": torch.int8,
    "fp8": torch.float8_e4m3fn,
    "fp8-dynamic": torch.float8_e4m3fn,
    "int4": torch.uint8,
}
"""By name of the KVFormat."""


@dataclass(frozen=True, slots=True)
class LayerCache:
    """Strided views of one layer: keys and values, [blocks + 1, heads, block_tokens, width] and [..., value_width],
    two elements in one of uint8.

    Where `latent`, the values are the beginnings of the keys. Scales are bfloat16 [blocks + 1, heads, block_tokens,
    ...], and None where there are none (kvik_kernels.quantised).
    """

    keys: Tensor
    values: Tensor
    value_width: int
    latent: bool
    key_scales: Tensor | None = None
    value_scales: Tensor | None = None


class KVCache:
    """Owns the buffer. All of it is zero at first, so a slot that was never written is at least finite."""

    def __init__(self, *, blocks: int, layout: KVLayout, dtype: torch.dtype, device: torch.device) -> None:
        """`dtype`: what attention computes in; vectors of formats that are not quantised have it."""
        self.layout = layout
        self.block_tokens = layout.block_tokens
        self.dtype = dtype
        self.regions = _zeros((blocks + 1, layout.block_bytes), torch.uint8, device)
        """All blocks as bytes, uint8 [blocks + 1, block bytes]: what swap, disk and transfer move."""
        self.rotation = Rotation(layout.width, dtype, device) if layout.formats.key.rotated else None
        """Of the keys that are kept, and of queries."""
        self.layers = [self._layer(place.slot) for place in layout.places]

    @property
    def blocks(self) -> int:
        """The scratch block is one of them."""
        return self.regions.shape[0]

    @property
    def bytes(self) -> int:
        return self.regions.numel()

    def copy_blocks(self, sources: Tensor, targets: Tensor) -> None:
        """Copy whole blocks, all layers: int64 [copies] each, on the device. All reads happen before all writes."""
        self.regions.index_copy_(0, targets, self.regions.index_select(0, sources))

    def _layer(self, slot: int) -> LayerCache:
        layout, width = self.layout, self.layout.value_width
        start = slot * layout.slot_bytes
        keys, key_scales = self._pages(start, layout.key_page_bytes, layout.formats.key)
        if layout.parts == 1:
            return LayerCache(keys, keys[..., :width], width, latent=True)
        start += layout.heads * layout.key_page_bytes
        values, value_scales = self._pages(start, layout.value_page_bytes, layout.formats.value)
        return LayerCache(keys, values, width, latent=False, key_scales=key_scales, value_scales=value_scales)

    def _pages(self, start: int, page: int, kept: KVFormat) -> tuple[Tensor, Tensor | None]:
        layout = self.layout
        shape = (layout.heads, layout.block_tokens, layout.width)
        return page_views(self.regions, start, page, *shape, STORED[kept.name], scaled=kept.scaled)


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros; on a CPU from anonymous pages that take memory only once they are written."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    size = dtype.itemsize
    for extent in shape:
        size *= extent
    return torch.frombuffer(mmap.mmap(-1, size), dtype=dtype).view(shape)
