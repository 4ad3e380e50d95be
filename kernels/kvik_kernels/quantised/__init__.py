"""How vectors of a quantised KV cache are kept.

| dtype | scales | an element is |
|---|---|---|
| int8, float8_e4m3fn | one bfloat16 for each token and head | its byte times the scale |
| float8_e4m3fn | none | its byte |
| uint8 | a step and a lowest number for each 32 elements | four bits (quantised.int4) |

Scales come of the vector alone, so a token's bytes depend neither on its neighbours nor on when it was written. Every
kernel computes the same bits: scales are rounded so that no element leaves its type's range, by integer arithmetic;
elements are divided in float32 and rounded to the nearest, halves to even.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from kvik_kernels.quantised import int4
from kvik_kernels.quantised.int4 import up_to_bfloat16

if TYPE_CHECKING:
    import torch

INT4 = "torch.uint8"
SCALE_BYTES = 2
LARGEST = {"torch.int8": 127.0, "torch.float8_e4m3fn": 448.0}
"""What the largest element of a vector becomes where it has one scale, by dtype."""
WITHOUT_SCALES = ("torch.float8_e4m3fn",)
"""Dtypes whose elements may be kept with no scale at all: larger ones become the largest."""
MOST = 2.0**120
"""Elements beyond it, and infinities, are kept as it; NaN as 0. A number that is not finite would spoil whoever sees it
with weight 0, and this one still is finite after it was rounded up."""


def is_quantised(dtype: torch.dtype) -> bool:
    """Whether vectors of this dtype are kept in fewer bits than they are computed in."""
    return str(dtype) in LARGEST or str(dtype) == INT4


def kept_width(dtype: torch.dtype, width: int) -> int:
    """Elements of the dtype that a vector of `width` takes.

    Raises ValueError for a width that is no whole number of groups.
    """
    if str(dtype) != INT4:
        return width
    if width % int4.GROUP:
        raise ValueError(f"width: {width} is no multiple of the {int4.GROUP} elements that share a scale in 4 bits")
    return width // 2


def scales_shape(dtype: torch.dtype, width: int) -> tuple[int, ...]:
    """Of one vector's scales, where it has some."""
    return (int4.scales_of_vector(width),) if str(dtype) == INT4 else ()


def vector_bytes(dtype: torch.dtype, width: int, *, scaled: bool) -> int:
    """What one vector takes, its scales counted."""
    scales = math.prod(scales_shape(dtype, width)) if scaled else 0
    return kept_width(dtype, width) * dtype.itemsize + scales * SCALE_BYTES


def quantise(vectors: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """`[..., width]` -> `[..., kept_width]` of `dtype`, and bfloat16 scales `[..., *scales_shape]`: 0 for a vector of
    zeros."""
    import torch

    finite = vectors.float().nan_to_num(0.0, MOST, -MOST).clamp(-MOST, MOST)
    if str(dtype) == INT4:
        return int4.quantise(finite)
    scales = up_to_bfloat16(finite.abs().amax(-1) / LARGEST[str(dtype)])
    divisors = scales.float().masked_fill(scales == 0, 1.0)
    shares = finite / divisors[..., None]
    return (shares.round() if dtype is torch.int8 else shares).to(dtype), scales


def keep(vectors: torch.Tensor, dtype: torch.dtype, *, scaled: bool) -> tuple[torch.Tensor, torch.Tensor | None]:
    """`vectors` as a cache of `dtype` keeps them: quantised with or without scales, or as they are."""
    if scaled:
        return quantise(vectors, dtype)
    if not is_quantised(dtype):
        return vectors, None
    most = LARGEST[str(dtype)]
    return vectors.float().nan_to_num(0.0, most, -most).clamp(-most, most).to(dtype), None


def dequantise(vectors: torch.Tensor, scales: torch.Tensor | None) -> torch.Tensor:
    """What `keep` gave -> float32 `[..., width]`."""
    if scales is None:
        return vectors.float()
    if str(vectors.dtype) == INT4:
        return int4.dequantise(vectors, scales)
    return vectors.float() * scales.float()[..., None]


def page_views(
    raw: torch.Tensor,
    start: int,
    page: int,
    heads: int,
    block_tokens: int,
    width: int,
    dtype: torch.dtype,
    *,
    scaled: bool,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """One layer's vectors `[blocks, heads, block_tokens, kept_width]` and scales `[blocks, heads, block_tokens,
    *scales_shape]` in uint8 `[blocks, block bytes]`, whose pages of `page` bytes, one for each head, begin at byte
    `start` of each block."""

    import torch

    def view(element: torch.dtype, first: int, shape: tuple[int, ...]) -> torch.Tensor:
        size = element.itemsize
        whole = raw.view(element)
        inner = (shape[1], 1) if len(shape) == 2 else (1,)
        return whole.as_strided((raw.shape[0], heads, *shape), (whole.stride(0), page // size, *inner), first // size)

    kept = kept_width(dtype, width)
    vectors = view(dtype, start, (block_tokens, kept))
    if not scaled:
        return vectors, None
    behind = start + block_tokens * kept * dtype.itemsize
    return vectors, view(torch.bfloat16, behind, (block_tokens, *scales_shape(dtype, width)))


def scale_bits(scales: torch.Tensor | None) -> torch.Tensor | None:
    """bfloat16 scales as the Triton kernels take them: their bits, as int16."""
    import torch

    return None if scales is None else scales.view(torch.int16)


def scale_strides(scales: torch.Tensor | None) -> tuple[int | None, int | None]:
    """Strides of blocks and heads."""
    return (None, None) if scales is None else (scales.stride(0), scales.stride(1))
