"""The Triton kernel of rotary. Imports without torch."""

import triton
import triton.language as tl


@triton.jit
def rotary_kernel(
    x_ptr,
    cos_ptr,
    sin_ptr,
    x_token_stride,
    x_head_stride,
    cos_token_stride,
    sin_token_stride,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_P: tl.constexpr,
):
    """One program turns some heads of one token: [BLOCK_H, BLOCK_P] lanes over heads and their pairs. A lane reads both
    elements of its pair before it writes them, so nothing is read that another lane has written."""
    # int64: a long prompt's tokens have more elements than an int32 can count.
    token = tl.program_id(0).to(tl.int64)
    heads = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    pairs = tl.arange(0, BLOCK_P)
    exists = pairs < HALF
    inside = (heads < HEADS)[:, None] & exists[None, :]
    cos = tl.load(cos_ptr + token * cos_token_stride + pairs, mask=exists, other=0.0)[None, :]
    sin = tl.load(sin_ptr + token * sin_token_stride + pairs, mask=exists, other=0.0)[None, :]
    first_at = x_ptr + token * x_token_stride + (heads * x_head_stride)[:, None] + pairs[None, :]
    second_at = first_at + HALF
    first = tl.load(first_at, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(second_at, mask=inside, other=0.0).to(tl.float32)
    element = x_ptr.dtype.element_ty
    tl.store(first_at, (first * cos - second * sin).to(element), mask=inside)
    tl.store(second_at, (second * cos + first * sin).to(element), mask=inside)
