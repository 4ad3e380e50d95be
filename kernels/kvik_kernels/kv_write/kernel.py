"""The Triton kernel of kv_write. Imports without torch."""

import triton
import triton.language as tl


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
