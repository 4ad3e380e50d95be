"""The Triton kernel of swiglu. Imports without torch."""

import triton
import triton.language as tl


@triton.jit
def _sigmoid(x):
    # Of -|x|, which exp takes to 0 at worst and never to infinity.
    small = tl.exp(-tl.abs(x))
    return tl.where(x < 0, small, 1.0) / (1.0 + small)


@triton.jit
def swiglu_kernel(
    out_ptr,
    gate_up_ptr,
    gate_up_row_stride,
    WIDTH: tl.constexpr,
    GELU: tl.constexpr,
    TILE: tl.constexpr,
):
    """One program gates [TILE] elements of one row."""
    # int64: a long prompt's rows have more elements than an int32 can count.
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = columns < WIDTH
    at = gate_up_ptr + row * gate_up_row_stride + columns
    gate = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(at + WIDTH, mask=inside, other=0.0).to(tl.float32)
    if GELU:
        # (1 + tanh(y)) / 2 is sigmoid(2 y), here with y = sqrt(2 / pi) (gate + 0.044715 gate^3).
        activated = gate * _sigmoid(1.5957691216057308 * gate * (1.0 + 0.044715 * gate * gate))
    else:
        activated = gate * _sigmoid(gate)
    tl.store(out_ptr + row * WIDTH + columns, (activated * up).to(out_ptr.dtype.element_ty), mask=inside)
