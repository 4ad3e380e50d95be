"""The Triton kernel of kv_write. Imports without torch."""

import triton
import triton.language as tl

from kvik_kernels.quantised.kernel import scales_of_vector, store_vectors


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
):
    """The same with keys or values or both quantised: [BLOCK_H, BLOCK_D] lanes over heads and their elements. Scales
    are bfloat16 seen as int16; None where there are none."""
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
    k_to = k_cache_ptr + block * k_cache_block_stride + offset * k_cache_token_stride + heads * k_cache_head_stride
    v_to = v_cache_ptr + block * v_cache_block_stride + offset * v_cache_token_stride + heads * v_cache_head_stride
    k_scales = k_scale_ptr
    if k_scale_ptr is not None:
        k_of_vector: tl.constexpr = scales_of_vector(k_cache_ptr.dtype.element_ty, HEAD_DIM)
        k_scales += block * k_scale_block_stride + offset * k_of_vector + heads * k_scale_head_stride
    v_scales = v_scale_ptr
    if v_scale_ptr is not None:
        v_of_vector: tl.constexpr = scales_of_vector(v_cache_ptr.dtype.element_ty, HEAD_DIM)
        v_scales += block * v_scale_block_stride + offset * v_of_vector + heads * v_scale_head_stride
    store_vectors(k, k_to, k_scales, heads, KV_HEADS, HEAD_DIM, BLOCK_D)
    store_vectors(v, v_to, v_scales, heads, KV_HEADS, HEAD_DIM, BLOCK_D)
