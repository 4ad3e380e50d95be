"""The Triton kernel of kv_write. Imports without torch."""

import triton
import triton.language as tl

MOST = tl.constexpr(2.0**120)
"""As kvik_kernels.quantised has it, which imports no triton."""
ROUNDING = tl.constexpr(1.5 * 2.0**23)
"""Added to a float32 below 2**22 and taken away again, it leaves the nearest whole number, halves to even."""


@triton.jit(do_not_specialize_on_alignment=["slots_ptr"])
def kv_write_kernel(
    k_ptr,
    v_ptr,
    k_cache_ptr,
    v_cache_ptr,
    slots_ptr,
    k_token_stride,
    k_head_stride,
    v_token_stride,
    v_head_stride,
    k_cache_block_stride,
    k_cache_head_stride,
    k_cache_token_stride,
    v_cache_block_stride,
    v_cache_head_stride,
    v_cache_token_stride,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    TILE: tl.constexpr,
):
    """One program copies the keys and values of one token: [KV_HEADS * HEAD_DIM] lanes."""
    token = tl.program_id(0).to(tl.int64)
    # int64 from here on: a large pool has more elements than an int32 can count.
    slot = tl.load(slots_ptr + token)
    block = slot // BLOCK_TOKENS
    offset = slot % BLOCK_TOKENS

    lanes = tl.arange(0, TILE)
    inside = lanes < KV_HEADS * HEAD_DIM
    heads = lanes // HEAD_DIM
    dims = lanes % HEAD_DIM

    k = tl.load(k_ptr + token * k_token_stride + heads * k_head_stride + dims, mask=inside)
    v = tl.load(v_ptr + token * v_token_stride + heads * v_head_stride + dims, mask=inside)
    k_slot = k_cache_ptr + block * k_cache_block_stride + offset * k_cache_token_stride
    v_slot = v_cache_ptr + block * v_cache_block_stride + offset * v_cache_token_stride
    tl.store(k_slot + heads * k_cache_head_stride + dims, k, mask=inside)
    tl.store(v_slot + heads * v_cache_head_stride + dims, v, mask=inside)


@triton.jit
def _float8(x):
    """float32 of at most 448 to float8_e4m3fn, to the nearest, halves to even. By its bits: Triton's interpreter loses
    the carry into the exponent."""
    sign = (x.to(tl.int32, bitcast=True) >> 24) & 0x80
    x = tl.abs(x)
    bits = x.to(tl.int32, bitcast=True)
    normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20) - (120 << 3)
    small = ((x * 512.0 + ROUNDING) - ROUNDING).to(tl.int32)
    byte = sign | tl.where(x < 0.015625, small, normal)
    return byte.to(tl.int8).to(tl.float8e4nv, bitcast=True)


@triton.jit
def _store_vectors(x, to_ptr, lanes, scale_ptr, scale_lanes, heads, dims, KV_HEADS, HEAD_DIM, LARGEST: tl.constexpr):
    """Store x [heads, dims] as it is, or with a LARGEST as kvik_kernels.quantised says, bit by bit."""
    inside = (heads < KV_HEADS)[:, None] & (dims < HEAD_DIM)[None, :]
    if LARGEST == 0:
        tl.store(to_ptr + lanes, x, mask=inside)
    else:
        x = x.to(tl.float32)
        x = tl.where(x == x, x, 0.0)
        x = tl.minimum(tl.maximum(x, -MOST), MOST)
        share = tl.math.div_rn(tl.max(tl.abs(x), 1), tl.full(heads.shape, LARGEST, tl.float32))
        bits = (share.to(tl.int32, bitcast=True) + 0xFFFF) >> 16
        scale = (bits << 16).to(tl.float32, bitcast=True)
        divisor = tl.where(scale > 0.0, scale, 1.0)[:, None]
        x = tl.math.div_rn(x, tl.broadcast_to(divisor, x.shape))
        if to_ptr.dtype.element_ty == tl.int8:
            kept = ((x + ROUNDING) - ROUNDING).to(tl.int8)
        else:
            kept = _float8(x)
        tl.store(to_ptr + lanes, kept, mask=inside)
        tl.store(scale_ptr + scale_lanes, bits.to(tl.int16), mask=heads < KV_HEADS)


@triton.jit(do_not_specialize_on_alignment=["slots_ptr"])
def kv_write_quantised_kernel(
    k_ptr,
    v_ptr,
    k_cache_ptr,
    v_cache_ptr,
    k_scale_ptr,
    v_scale_ptr,
    slots_ptr,
    k_token_stride,
    k_head_stride,
    v_token_stride,
    v_head_stride,
    k_cache_block_stride,
    k_cache_head_stride,
    k_cache_token_stride,
    v_cache_block_stride,
    v_cache_head_stride,
    v_cache_token_stride,
    k_scale_block_stride,
    k_scale_head_stride,
    v_scale_block_stride,
    v_scale_head_stride,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_D: tl.constexpr,
    K_LARGEST: tl.constexpr,
    V_LARGEST: tl.constexpr,
):
    """The same with scales, of bfloat16 seen as int16, one for each head: [BLOCK_H, BLOCK_D] lanes. Keys or values
    whose LARGEST is 0 are copied as they are, and have no scales."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots_ptr + token)
    block = slot // BLOCK_TOKENS
    offset = slot % BLOCK_TOKENS

    heads = tl.arange(0, BLOCK_H)
    dims = tl.arange(0, BLOCK_D)
    inside = (heads < KV_HEADS)[:, None] & (dims < HEAD_DIM)[None, :]
    k_at = k_ptr + token * k_token_stride + (heads * k_head_stride)[:, None] + dims[None, :]
    v_at = v_ptr + token * v_token_stride + (heads * v_head_stride)[:, None] + dims[None, :]
    k = tl.load(k_at, mask=inside, other=0.0)
    v = tl.load(v_at, mask=inside, other=0.0)
    k_lanes = block * k_cache_block_stride + offset * k_cache_token_stride
    v_lanes = block * v_cache_block_stride + offset * v_cache_token_stride
    k_scale_lanes = heads
    v_scale_lanes = heads
    if K_LARGEST > 0:
        k_scale_lanes = block * k_scale_block_stride + offset + heads * k_scale_head_stride
    if V_LARGEST > 0:
        v_scale_lanes = block * v_scale_block_stride + offset + heads * v_scale_head_stride
    # fmt: off
    _store_vectors(
        k, k_cache_ptr, k_lanes + (heads * k_cache_head_stride)[:, None] + dims[None, :], k_scale_ptr, k_scale_lanes,
        heads, dims, KV_HEADS, HEAD_DIM, K_LARGEST,
    )
    _store_vectors(
        v, v_cache_ptr, v_lanes + (heads * v_cache_head_stride)[:, None] + dims[None, :], v_scale_ptr, v_scale_lanes,
        heads, dims, KV_HEADS, HEAD_DIM, V_LARGEST,
    )
    # fmt: on
