"""Writing new keys and values into the blocks of a paged KV cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvik_kernels.checks import require_all_fit, require_dtype, require_positive, require_shape, require_unit_stride
from kvik_kernels.cpu.library import DTYPES, STORED, Kernel, Library
from kvik_kernels.cpu.recording import ReadAnew
from kvik_kernels.cpu.scales import kept_dtype, scale_arguments
from kvik_kernels.cpu.structs import NewTokens, Writes
from kvik_kernels.quantised import kept_width

if TYPE_CHECKING:
    import torch


class PagedWrites(ReadAnew):
    """Where the new tokens of one step go, in each layer."""

    def __init__(
        self,
        library: Library,
        slots: torch.Tensor,
        *,
        kv_heads: int,
        width: int,
        blocks: int,
        block_tokens: int,
        dtype: torch.dtype,
        key_dtype: torch.dtype | None = None,
        value_dtype: torch.dtype | None = None,
    ) -> None:
        """slots: int64 `[tokens]`, block * block_tokens + offset; a slot that is named twice gets either token.
        blocks: of the cache. dtype: of new keys and values; key_dtype, value_dtype: of the cache, when not the same, as
        kvik_kernels.quantised has them.

        Raises TypeError or ValueError for an argument that does not fit, naming it.
        """
        import torch

        require_shape("slots", slots, (None,))
        require_dtype("slots", slots, torch.int64)
        require_unit_stride("slots", slots)
        if str(dtype) not in DTYPES:
            raise TypeError(f"dtype: expected one of {', '.join(DTYPES)}, got {dtype}")
        require_positive("block_tokens", block_tokens)
        fitting = library.functions.kvik_slots_that_fit(slots.data_ptr(), len(slots), blocks * block_tokens)
        if fitting < len(slots):
            raise ValueError(f"slots: {int(slots[fitting])} is none of {blocks} blocks of {block_tokens} tokens")
        self._library = library
        self._slots = slots
        self._dtype = dtype
        self._kept = (kept_dtype("key_dtype", key_dtype, dtype), kept_dtype("value_dtype", value_dtype, dtype))
        self._new = (slots.shape[0], kv_heads, width)
        self._width = width
        self._caches = [(blocks, kv_heads, block_tokens, kept_width(each, width)) for each in self._kept]
        self._kind = (self._new, self._dtype, self._kept, self._caches)
        self._all = Writes(
            slots.data_ptr(), *self._new, block_tokens, *(STORED[str(each)] for each in (dtype, *self._kept))
        )

    def write(
        self,
        key: torch.Tensor,
        value: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        key_scales: torch.Tensor | None = None,
        value_scales: torch.Tensor | None = None,
    ) -> None:
        """key, value: `[tokens, kv_heads, width]`; keys, values: strided views `[blocks, kv_heads, block_tokens,
        width]`, of half the width in 4 bits; scales: bfloat16 views, where these have some (kvik_kernels.quantised).
        Values are made finite as by torch.nan_to_num: one would spoil even those that give it no weight.

        Raises TypeError or ValueError for an argument that does not fit, naming it.
        """
        new, (key_dtype, value_dtype) = self._new, self._kept
        require_all_fit(self._dtype, ("key", key, new), ("value", value, new))
        require_all_fit(key_dtype, ("keys", keys, self._caches[0]))
        require_all_fit(value_dtype, ("values", values, self._caches[1]))
        layer = NewTokens(
            key.data_ptr(),
            value.data_ptr(),
            keys.data_ptr(),
            values.data_ptr(),
            key.stride()[:2],
            value.stride()[:2],
            keys.stride()[:3],
            values.stride()[:3],
            *scale_arguments(keys, key_scales, values, value_scales, self._width),
        )
        self._library.run(Kernel.WRITE, self._library.best, layer, self._all)
