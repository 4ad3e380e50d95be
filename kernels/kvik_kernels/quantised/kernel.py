"""What the Triton kernels share of quantised caches: vectors to bytes and back, as this package says. Imports without
torch.

A cache of uint8 holds four bits an element; any other is quantised with a scale a vector where it has scales, and kept
as it is where it has none.
"""

import triton
import triton.language as tl

MOST = tl.constexpr(2.0**120)
"""As the package has it, which imports no triton."""
GROUP = tl.constexpr(32)
"""Elements of four bits that share a step and a lowest number."""
ROUNDING = tl.constexpr(1.5 * 2.0**23)
"""Added to a float32 below 2**22 and taken away again, it leaves the nearest whole number, halves to even."""


@triton.constexpr_function
def scales_of_vector(element, head_dim):
    """How many a vector has, where it has any."""
    return head_dim // GROUP.value * 2 if element == tl.uint8 else 1


@triton.jit
def _wide(bits):
    """bfloat16 seen as int16 to float32."""
    return (bits.to(tl.int32) << 16).to(tl.float32, bitcast=True)


@triton.jit
def _up(x):
    """float32 of at least 0 -> the bits of the smallest bfloat16 that is not less, int32."""
    return (x.to(tl.int32, bitcast=True) + 0xFFFF) >> 16


@triton.jit
def _divided(x, divisor):
    """x / divisor, rounded once; x where the divisor is 0. The divisor has x's shape, but for a last dimension of 1."""
    return tl.math.div_rn(x, tl.broadcast_to(tl.where(divisor > 0.0, divisor, 1.0), x.shape))


@triton.jit
def _rounded(x):
    """To the nearest whole number, halves to even: of less than 2**22."""
    return (x + ROUNDING) - ROUNDING


@triton.jit
def _float8(x):
    """float32 of at most 448 to float8_e4m3fn, to the nearest, halves to even. By its bits: Triton's interpreter loses
    the carry into the exponent."""
    sign = (x.to(tl.int32, bitcast=True) >> 24) & 0x80
    x = tl.abs(x)
    bits = x.to(tl.int32, bitcast=True)
    normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20) - (120 << 3)
    small = _rounded(x * 512.0).to(tl.int32)
    byte = sign | tl.where(x < 0.015625, small, normal)
    return byte.to(tl.int8).to(tl.float8e4nv, bitcast=True)


@triton.jit
def _one_byte(x, element: tl.constexpr):
    """float32 that the type holds, to it."""
    # Not two returns: triton wants them to be of one type.
    if element == tl.int8:
        byte = _rounded(x).to(tl.int8)
    else:
        byte = _float8(x)
    return byte


@triton.jit
def _store_groups(x, vectors_ptr, scales_ptr, heads, inside, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr):
    """Four bits an element. x: float32 [heads, BLOCK_D]; pointers: [heads], of each head's vector and scales."""
    GROUPS: tl.constexpr = BLOCK_D // GROUP
    HALF: tl.constexpr = GROUP // 2
    x = tl.reshape(x, (x.shape[0], GROUPS, GROUP))
    low = tl.min(x, 2)
    bits = tl.where(low == 0.0, 0.0, low).to(tl.int32, bitcast=True)
    lowest = tl.where(bits < 0, bits + 0xFFFF, bits) >> 16
    base = _wide(lowest)
    # Zero may have a sign here.
    steps = _up(tl.math.div_rn(tl.abs(tl.max(x, 2) - base), tl.full(base.shape, 15.0, tl.float32)))
    numbers = _rounded(_divided(x - base[:, :, None], _wide(steps)[:, :, None])).to(tl.int32)
    halves = tl.reshape(numbers, (x.shape[0], GROUPS, 2, HALF))
    shifted = halves << (tl.arange(0, 2) * 4)[None, None, :, None]
    groups = tl.arange(0, GROUPS)
    real = inside[:, None] & (groups < HEAD_DIM // GROUP)[None, :]
    bytes_at = (vectors_ptr[:, None] + groups[None, :] * HALF)[:, :, None] + tl.arange(0, HALF)[None, None, :]
    tl.store(bytes_at, tl.sum(shifted, 2).to(tl.uint8), mask=real[:, :, None])
    scales_at = scales_ptr[:, None] + groups[None, :] * 2
    tl.store(scales_at, steps.to(tl.int16), mask=real)
    tl.store(scales_at + 1, lowest.to(tl.int16), mask=real)


@triton.jit
def store_vectors(x, vectors_ptr, scales_ptr, heads, KV_HEADS, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr):
    """One token's x [heads, BLOCK_D] into its cache. Pointers: [heads], where each head's vector begins and where its
    scales do; None without scales."""
    dims = tl.arange(0, BLOCK_D)
    inside = heads < KV_HEADS
    real = inside[:, None] & (dims < HEAD_DIM)[None, :]
    element: tl.constexpr = vectors_ptr.dtype.element_ty
    at = vectors_ptr[:, None] + dims[None, :]
    if element == tl.uint8:
        _store_groups(_finite(x, MOST), vectors_ptr, scales_ptr, heads, inside, HEAD_DIM, BLOCK_D)
    elif scales_ptr is not None:
        LARGEST: tl.constexpr = 127.0 if element == tl.int8 else 448.0
        x = _finite(x, MOST)
        bits = _up(tl.math.div_rn(tl.max(tl.abs(x), 1), tl.full(heads.shape, LARGEST, tl.float32)))
        tl.store(at, _one_byte(_divided(x, _wide(bits)[:, None]), element), mask=real)
        tl.store(scales_ptr, bits.to(tl.int16), mask=inside)
    elif element == tl.float8e4nv:
        tl.store(at, _float8(_finite(x, 448.0)), mask=real)
    else:
        tl.store(at, x, mask=real)


@triton.jit
def _finite(x, most):
    """As float32: NaN as 0, and nothing further from it than `most`."""
    x = x.to(tl.float32)
    x = tl.where(x == x, x, 0.0)
    return tl.minimum(tl.maximum(x, -most), most)


@triton.jit
def load_scales(kept, block, offset, written, MASKED: tl.constexpr):
    """float32: what the elements of the vectors at `offset` of `block` are to be multiplied by, 0 where nothing is
    written. `kept` as in `load_vectors`, with a scale."""
    _, _, _, scale_ptr, scale_block_stride, scale_head_stride, head = kept
    return _load_wide(scale_ptr + head * scale_head_stride + block * scale_block_stride + offset, written, MASKED)


@triton.jit
def load_vectors(
    kept,
    block,
    offset,
    dims,
    written,
    dtype: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    MASKED: tl.constexpr,
):
    """The vectors at `offset` of `block`: elements as they lie there, but for four bits, which are widened to `dtype`.

    kept: the pointer to one head's vectors, strides of blocks and tokens, then the pointer to all scales, None without,
    their strides of blocks and heads, and the head.

    Arguments are [1, tokens] and `dims` [BLOCK_D, 1], or the other way round. 0 where nothing is written.
    """
    ptr, block_stride, token_stride, scale_ptr, scale_block_stride, scale_head_stride, head = kept
    PACKED: tl.constexpr = ptr.dtype.element_ty == tl.uint8
    CHECKED: tl.constexpr = MASKED or HEAD_DIM != BLOCK_D
    HALF: tl.constexpr = GROUP // 2
    lanes = dims
    if PACKED:
        lanes = dims // GROUP * HALF + dims % HALF
    inside = dims < HEAD_DIM
    if MASKED:
        inside = inside & written
    at = ptr + (block * block_stride + offset * token_stride) + lanes
    if CHECKED:
        x = tl.load(at, mask=inside, other=0.0)
    else:
        x = tl.load(at)
    if PACKED:
        group = (
            head * scale_head_stride + block * scale_block_stride + offset * (HEAD_DIM // GROUP * 2) + dims // GROUP * 2
        )
        steps = _load_wide(scale_ptr + group, inside, CHECKED)
        lowest = _load_wide(scale_ptr + group + 1, inside, CHECKED)
        x = ((x >> (dims % GROUP // HALF * 4)) & 15).to(tl.float32) * steps + lowest
        if dtype == tl.float16:
            x = tl.clamp(x, -65504.0, 65504.0)
        x = x.to(dtype)
    return x


@triton.jit
def _load_wide(at, written, CHECKED: tl.constexpr):
    if CHECKED:
        return _wide(tl.load(at, mask=written, other=0))
    return _wide(tl.load(at))
