"""The Triton kernel of rms_norm. Imports without torch."""

import triton
import triton.language as tl


@triton.jit
def rms_norm_kernel(
    out_ptr,
    x_ptr,
    addend_ptr,
    weight_ptr,
    x_row_stride,
    addend_row_stride,
    eps,
    WIDTH: tl.constexpr,
    TILE: tl.constexpr,
):
    """One program norms one row: [TILE] lanes over its elements. addend_ptr: None where there is nothing to add."""
    # int64: a long prompt's rows have more elements than an int32 can count.
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, TILE)
    inside = columns < WIDTH
    x_at = x_ptr + row * x_row_stride + columns
    x = tl.load(x_at, mask=inside, other=0.0)
    if addend_ptr is not None:
        addend = tl.load(addend_ptr + row * addend_row_stride + columns, mask=inside, other=0.0)
        x += addend.to(tl.float32)
        tl.store(x_at, x, mask=inside)
    weight = tl.load(weight_ptr + columns, mask=inside, other=0.0)
    scale = tl.rsqrt(tl.sum(x * x, 0) / WIDTH + eps)
    normed = x * scale * weight
    tl.store(out_ptr + row * WIDTH + columns, normed.to(out_ptr.dtype.element_ty), mask=inside)
