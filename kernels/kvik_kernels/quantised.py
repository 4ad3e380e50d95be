"""How vectors of a quantised KV cache are kept: elements of one byte, and one bfloat16 scale for each token and head.

The scale comes of the vector alone, so a token's bytes depend neither on its neighbours nor on when it was written.
Every kernel computes the same bits: the scale is rounded up, so that no element is too large for its type, by integer
arithmetic; elements are divided by it in float32 and rounded to the nearest, halves to even.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

LARGEST = {"torch.int8": 127.0, "torch.float8_e4m3fn": 448.0}
"""What the largest element of a vector becomes, by dtype."""
MOST = 2.0**120
"""Elements beyond it, and infinities, are kept as it; NaN as 0. A number that is not finite would spoil whoever sees it
with weight 0, and this one still is finite after it was rounded up."""
SCALE_BYTES = 2


def is_quantised(dtype: torch.dtype) -> bool:
    """Whether vectors of this dtype need scales."""
    return str(dtype) in LARGEST


def quantise(vectors: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """`[..., width]` -> the same of `dtype`, and bfloat16 scales `[...]`: 0 for a vector of zeros."""
    import torch

    largest = LARGEST[str(dtype)]
    finite = vectors.float().nan_to_num(0.0, MOST, -MOST).clamp(-MOST, MOST)
    scales = _up_to_bfloat16(finite.abs().amax(-1) / largest)
    divisors = scales.float().masked_fill(scales == 0, 1.0)
    shares = finite / divisors[..., None]
    return (shares.round() if dtype is torch.int8 else shares).to(dtype), scales


def dequantise(vectors: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """What `quantise` gave -> float32 `[..., width]`."""
    return vectors.float() * scales.float()[..., None]


def page_views(
    raw: torch.Tensor, start: int, page: int, heads: int, block_tokens: int, width: int, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """One layer's vectors `[blocks, heads, block_tokens, width]` and scales `[blocks, heads, block_tokens]` in uint8
    `[blocks, block bytes]`, whose pages of `page` bytes, one for each head, begin at byte `start` of each block."""

    import torch

    def view(element: torch.dtype, first: int, shape: tuple[int, ...], inner: tuple[int, ...]) -> torch.Tensor:
        size = element.itemsize
        whole = raw.view(element)
        return whole.as_strided((raw.shape[0], heads, *shape), (whole.stride(0), page // size, *inner), first // size)

    vectors = view(dtype, start, (block_tokens, width), (width, 1))
    if not is_quantised(dtype):
        return vectors, None
    return vectors, view(torch.bfloat16, start + block_tokens * width * dtype.itemsize, (block_tokens,), (1,))


def scale_bits(scales: torch.Tensor | None) -> torch.Tensor | None:
    """bfloat16 scales as the Triton kernels take them: their bits, as int16."""
    import torch

    return None if scales is None else scales.view(torch.int16)


def scale_strides(scales: torch.Tensor | None) -> tuple[int | None, int | None]:
    """Strides of blocks and heads."""
    return (None, None) if scales is None else (scales.stride(0), scales.stride(1))


def _up_to_bfloat16(numbers: torch.Tensor) -> torch.Tensor:
    """The smallest bfloat16 that is not less: of float32 of at least 0."""
    import torch

    return ((numbers.view(torch.int32) + 0xFFFF) >> 16).to(torch.int16).view(torch.bfloat16)
