"""The Triton kernels of paged_attention. Imports without torch.

One tile of queries, [M] rows, packs query tokens × the query heads of one KV head, so that the heads of a group share
every load of K and V: row m is token m // GROUP of the tile and head m % GROUP of the group (arXiv 2511.11581). Keys
are walked in tiles of TILE tokens, whatever the block length, with the running softmax of FlashAttention in base 2.
`prefill_kernel` serves any mix of query lengths; `decode_kernel` one query a row, its keys split over programs, whose
parts `reduce_kernel` joins.
"""

import triton
import triton.language as tl

from kvik_kernels.quantised.kernel import load_scales, load_vectors


@triton.jit
def _attend(
    q,
    acc,
    row_max,
    row_sum,
    unit,
    seen_from,
    visible,
    first_key,
    end_key,
    kept_keys,
    kept_values,
    table_ptr,
    log2_scale,
    BLOCK_TOKENS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    TILE: tl.constexpr,
    PRECISION: tl.constexpr,
    MASKED: tl.constexpr,
    WINDOW: tl.constexpr,
):
    """Fold the keys [first_key, end_key) into the softmax state of queries `q` [M, BLOCK_D].

    visible [M]: how many keys of the sequence each query sees, less those before seen_from [M] if there is a WINDOW.
    Without MASKED every query sees every key of the range and the range is whole tiles. With it, nothing at or past
    `end_key` is read: slots not written yet may hold NaN, and block table entries past the sequence garbage. Nor is
    anything before `first_key`: what lies behind the window may be another sequence's by now. Where vectors have one
    scale, a column of scores takes its key's, a column of weights its value's, so that the elements go into the
    products as they are; four bits have more scales, and are widened as they are loaded. In fp16 weights take a value's
    scale as a part of `unit`, the largest one so far, and `acc` is in that unit: where values are small, weights times
    scales would be lost.
    """
    dims = tl.arange(0, BLOCK_D)
    for tile_start in tl.range(first_key, end_key, TILE):
        keys = tile_start + tl.arange(0, TILE)
        written = keys < end_key
        if MASKED:
            block = tl.load(table_ptr + keys // BLOCK_TOKENS, mask=written, other=0)
        else:
            block = tl.load(table_ptr + keys // BLOCK_TOKENS)
        # int64: block times stride passes 2**31 elements in a large pool.
        block = block.to(tl.int64)
        offset = keys % BLOCK_TOKENS
        # fmt: off
        k = load_vectors(
            kept_keys, block[None, :], offset[None, :], dims[:, None], written[None, :], q.dtype, HEAD_DIM, BLOCK_D,
            MASKED,
        )
        v = load_vectors(
            kept_values, block[:, None], offset[:, None], dims[None, :], written[:, None], q.dtype, HEAD_DIM, BLOCK_D,
            MASKED,
        )
        # fmt: on
        scores = tl.dot(q, k.to(q.dtype), input_precision=PRECISION)
        if kept_keys[3] is not None and kept_keys[0].dtype.element_ty != tl.uint8:
            scores *= (log2_scale * load_scales(kept_keys, block, offset, written, MASKED))[None, :]
        else:
            scores *= log2_scale
        if MASKED:
            seen = keys[None, :] < visible[:, None]
            if WINDOW > 0:
                seen = seen & (keys[None, :] >= seen_from[:, None])
            scores = tl.where(seen, scores, float("-inf"))
        new_max = tl.maximum(row_max, tl.max(scores, 1))
        if MASKED:
            # A query that has seen no key yet keeps a maximum of -inf; -inf minus -inf would be NaN.
            shift = tl.where(new_max == float("-inf"), 0.0, new_max)
        else:
            shift = new_max
        weights = tl.exp2(scores - shift[:, None])
        decay = tl.exp2(row_max - shift)
        row_sum = row_sum * decay + tl.sum(weights, 1)
        if kept_values[3] is not None and kept_values[0].dtype.element_ty != tl.uint8:
            scales = load_scales(kept_values, block, offset, written, MASKED)
            if q.dtype == tl.float16:
                larger = tl.maximum(unit, tl.max(scales, 0))
                scales /= larger
                decay *= unit / larger
                unit = larger
            weights *= scales[None, :]
        acc = tl.dot(weights.to(q.dtype), v.to(q.dtype), acc * decay[:, None], input_precision=PRECISION)
        row_max = new_max
    return acc, row_max, row_sum, unit


@triton.jit
def _first_unit(kept_values, dtype: tl.constexpr):
    """Less than any scale that is not 0, in fp16 over values with one scale a vector; else 1 for good."""
    if dtype == tl.float16 and (kept_values[3] is not None and kept_values[0].dtype.element_ty != tl.uint8):
        unit = tl.full([], 2.0**-126, tl.float32)
    else:
        unit = tl.full([], 1.0, tl.float32)
    return unit


@triton.jit
def _normalised(acc, row_sum, unit):
    """acc * unit / row_sum, and zeros for a query that sees no key."""
    return acc * unit / tl.where(row_sum > 0.0, row_sum, 1.0)[:, None]


@triton.jit
def _row_of_tile(starts_ptr, tile, rows, BLOCK_Q: tl.constexpr):
    """The row that query tile `tile` belongs to, when row r's first tile is query_starts[r] // BLOCK_Q + r.

    These first tiles grow strictly with r and leave each row tiles enough, so the grid has a size known on the host
    (tokens // BLOCK_Q + rows) and tiles left over find that they have nothing to do.
    """
    low = tile * 0
    high = rows
    while low < high:
        middle = (low + high) // 2
        if tl.load(starts_ptr + middle) // BLOCK_Q + middle <= tile:
            low = middle + 1
        else:
            high = middle
    return low - 1


@triton.jit(
    do_not_specialize=["rows", "table_stride"],
    do_not_specialize_on_alignment=["table_ptr", "starts_ptr", "lens_ptr"],
)
def prefill_kernel(
    out_ptr,
    q_ptr,
    k_ptr,
    v_ptr,
    table_ptr,
    starts_ptr,
    lens_ptr,
    log2_scale,
    rows,
    table_stride,
    out_token_stride,
    out_head_stride,
    q_token_stride,
    q_head_stride,
    k_block_stride,
    k_head_stride,
    k_token_stride,
    v_block_stride,
    v_head_stride,
    v_token_stride,
    k_scale_ptr,
    v_scale_ptr,
    k_scale_block_stride,
    k_scale_head_stride,
    v_scale_block_stride,
    v_scale_head_stride,
    GROUP: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    TILE: tl.constexpr,
    PRECISION: tl.constexpr,
    WINDOW: tl.constexpr,
):
    """Program (query tile, KV head): BLOCK_Q query tokens of one row, causal; of the last WINDOW keys if not 0."""
    tile = tl.program_id(0)
    kv_head = tl.program_id(1)
    row = _row_of_tile(starts_ptr, tile, rows, BLOCK_Q)
    row_start = tl.load(starts_ptr + row)
    queries = tl.load(starts_ptr + row + 1) - row_start
    first_query = (tile - (row_start // BLOCK_Q + row)) * BLOCK_Q
    if first_query >= queries:
        return

    m = tl.arange(0, BLOCK_M)
    dims = tl.arange(0, BLOCK_D)
    query = first_query + m // GROUP
    token = (row_start + query).to(tl.int64)
    head = kv_head * GROUP + m % GROUP
    real = (m < BLOCK_Q * GROUP) & (query < queries)
    present = real[:, None] & (dims < HEAD_DIM)[None, :]
    q_at = q_ptr + (token * q_token_stride + head * q_head_stride)[:, None] + dims[None, :]
    q = tl.load(q_at, mask=present, other=0.0)

    seq_len = tl.load(lens_ptr + row)
    before = seq_len - queries
    visible = before + query + 1
    last_query = tl.minimum(first_query + BLOCK_Q, queries)
    end_key = before + last_query
    # Keys that even the first query of the tile sees, and with a window even the last one still does, need no mask.
    first_key = 0
    whole_start = 0
    if WINDOW > 0:
        first_key = tl.maximum(before + first_query + 1 - WINDOW, 0)
        whole_start = first_key + tl.cdiv(tl.maximum(end_key - WINDOW, 0) - first_key, TILE) * TILE
    whole_end = whole_start + tl.maximum(before + first_query + 1 - whole_start, 0) // TILE * TILE
    seen_from = visible - WINDOW

    table = table_ptr + row.to(tl.int64) * table_stride
    # fmt: off
    keys = (
        k_ptr + kv_head.to(tl.int64) * k_head_stride, k_block_stride, k_token_stride,
        k_scale_ptr, k_scale_block_stride, k_scale_head_stride, kv_head.to(tl.int64),
    )
    values = (
        v_ptr + kv_head.to(tl.int64) * v_head_stride, v_block_stride, v_token_stride,
        v_scale_ptr, v_scale_block_stride, v_scale_head_stride, kv_head.to(tl.int64),
    )
    # fmt: on
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    row_max = tl.full([BLOCK_M], float("-inf"), tl.float32)
    row_sum = tl.zeros([BLOCK_M], tl.float32)
    unit = _first_unit(values, q.dtype)
    # fmt: off
    if WINDOW > 0:
        acc, row_max, row_sum, unit = _attend(
            q, acc, row_max, row_sum, unit, seen_from, visible, first_key, tl.minimum(whole_start, end_key), keys,
            values, table, log2_scale,
            BLOCK_TOKENS, HEAD_DIM, BLOCK_D, TILE, PRECISION, MASKED=True, WINDOW=WINDOW,
        )
    acc, row_max, row_sum, unit = _attend(
        q, acc, row_max, row_sum, unit, seen_from, visible, whole_start, whole_end, keys, values, table, log2_scale,
        BLOCK_TOKENS, HEAD_DIM, BLOCK_D, TILE, PRECISION, MASKED=False, WINDOW=WINDOW,
    )
    acc, row_max, row_sum, unit = _attend(
        q, acc, row_max, row_sum, unit, seen_from, visible, whole_end, end_key, keys, values, table, log2_scale,
        BLOCK_TOKENS, HEAD_DIM, BLOCK_D, TILE, PRECISION, MASKED=True, WINDOW=WINDOW,
    )
    # fmt: on
    out_at = out_ptr + (token * out_token_stride + head * out_head_stride)[:, None] + dims[None, :]
    tl.store(out_at, _normalised(acc, row_sum, unit).to(out_ptr.dtype.element_ty), mask=present)


@triton.jit
def _segment_tokens(seq_len, splits, TILE: tl.constexpr, MIN_SEGMENT: tl.constexpr):
    """Keys of one split: an equal share of the sequence in whole tiles, at least MIN_SEGMENT."""
    share = tl.cdiv(tl.cdiv(seq_len, splits), TILE) * TILE
    return tl.maximum(share, MIN_SEGMENT)


@triton.jit(
    do_not_specialize=["splits", "table_stride"],
    do_not_specialize_on_alignment=["table_ptr", "starts_ptr", "lens_ptr"],
)
def decode_kernel(
    out_ptr,
    partial_ptr,
    log_sum_ptr,
    q_ptr,
    k_ptr,
    v_ptr,
    table_ptr,
    starts_ptr,
    lens_ptr,
    log2_scale,
    splits,
    table_stride,
    out_token_stride,
    out_head_stride,
    q_token_stride,
    q_head_stride,
    k_block_stride,
    k_head_stride,
    k_token_stride,
    v_block_stride,
    v_head_stride,
    v_token_stride,
    k_scale_ptr,
    v_scale_ptr,
    k_scale_block_stride,
    k_scale_head_stride,
    v_scale_block_stride,
    v_scale_head_stride,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    TILE: tl.constexpr,
    MIN_SEGMENT: tl.constexpr,
    SPLIT: tl.constexpr,
    PRECISION: tl.constexpr,
    WINDOW: tl.constexpr,
):
    """Program (row, KV head, split): the row's one query over its share of the keys it sees, the last WINDOW if not 0.

    With SPLIT the share's own softmax goes to partial_ptr [rows, q_heads, splits, HEAD_DIM] and the base-2 logarithm of
    its sum to log_sum_ptr [rows, q_heads, splits], both float32; a program whose share is empty writes neither. Without
    SPLIT there is one share and the result goes to out_ptr.
    """
    row = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    token = tl.load(starts_ptr + row).to(tl.int64)
    if tl.load(starts_ptr + row + 1) <= token:
        return
    seq_len = tl.load(lens_ptr + row)
    first_key = 0
    if WINDOW > 0:
        first_key = tl.maximum(seq_len - WINDOW, 0)
    end_key = seq_len
    if SPLIT:
        segment = _segment_tokens(seq_len - first_key, splits, TILE, MIN_SEGMENT)
        first_key += split * segment
        end_key = tl.minimum(first_key + segment, seq_len)
        if first_key >= end_key:
            return

    m = tl.arange(0, BLOCK_M)
    dims = tl.arange(0, BLOCK_D)
    head = kv_head * GROUP + m
    present = (m < GROUP)[:, None] & (dims < HEAD_DIM)[None, :]
    q_at = q_ptr + token * q_token_stride + (head * q_head_stride)[:, None] + dims[None, :]
    q = tl.load(q_at, mask=present, other=0.0)
    # Rows past the group are computed and dropped; they see what the real ones see.
    visible = tl.full([BLOCK_M], 0, tl.int32) + end_key
    whole_end = first_key + (end_key - first_key) // TILE * TILE

    table = table_ptr + row * table_stride
    # fmt: off
    keys = (
        k_ptr + kv_head.to(tl.int64) * k_head_stride, k_block_stride, k_token_stride,
        k_scale_ptr, k_scale_block_stride, k_scale_head_stride, kv_head.to(tl.int64),
    )
    values = (
        v_ptr + kv_head.to(tl.int64) * v_head_stride, v_block_stride, v_token_stride,
        v_scale_ptr, v_scale_block_stride, v_scale_head_stride, kv_head.to(tl.int64),
    )
    # fmt: on
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    row_max = tl.full([BLOCK_M], float("-inf"), tl.float32)
    row_sum = tl.zeros([BLOCK_M], tl.float32)
    unit = _first_unit(values, q.dtype)
    # fmt: off
    acc, row_max, row_sum, unit = _attend(
        q, acc, row_max, row_sum, unit, visible, visible, first_key, whole_end, keys, values, table, log2_scale,
        BLOCK_TOKENS, HEAD_DIM, BLOCK_D, TILE, PRECISION, MASKED=False, WINDOW=0,
    )
    acc, row_max, row_sum, unit = _attend(
        q, acc, row_max, row_sum, unit, visible, visible, whole_end, end_key, keys, values, table, log2_scale,
        BLOCK_TOKENS, HEAD_DIM, BLOCK_D, TILE, PRECISION, MASKED=True, WINDOW=0,
    )
    # fmt: on
    result = _normalised(acc, row_sum, unit)
    if SPLIT:
        part = (row * (KV_HEADS * GROUP) + head) * splits + split
        tl.store(partial_ptr + (part * HEAD_DIM)[:, None] + dims[None, :], result, mask=present)
        tl.store(log_sum_ptr + part, row_max + tl.log2(row_sum), mask=m < GROUP)
    else:
        out_at = out_ptr + token * out_token_stride + (head * out_head_stride)[:, None] + dims[None, :]
        tl.store(out_at, result.to(out_ptr.dtype.element_ty), mask=present)


@triton.jit(do_not_specialize=["splits"], do_not_specialize_on_alignment=["starts_ptr", "lens_ptr"])
def reduce_kernel(
    out_ptr,
    partial_ptr,
    log_sum_ptr,
    starts_ptr,
    lens_ptr,
    splits,
    out_token_stride,
    out_head_stride,
    Q_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    TILE: tl.constexpr,
    MIN_SEGMENT: tl.constexpr,
    CHUNK: tl.constexpr,
    WINDOW: tl.constexpr,
):
    """Program (row, query head): weigh the partial results of decode_kernel, CHUNK splits at a time."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    token = tl.load(starts_ptr + row).to(tl.int64)
    if tl.load(starts_ptr + row + 1) <= token:
        return
    keys = tl.load(lens_ptr + row)
    if WINDOW > 0:
        keys = tl.minimum(keys, WINDOW)
    filled = tl.cdiv(keys, _segment_tokens(keys, splits, TILE, MIN_SEGMENT))

    dims = tl.arange(0, BLOCK_D)
    first_part = (row * Q_HEADS + head) * splits
    acc = tl.zeros([BLOCK_D], tl.float32)
    total = 0.0
    largest = float("-inf")
    for chunk_start in tl.range(0, filled, CHUNK):
        split = chunk_start + tl.arange(0, CHUNK)
        log_sum = tl.load(log_sum_ptr + first_part + split, mask=split < filled, other=float("-inf"))
        partial = tl.load(
            partial_ptr + ((first_part + split) * HEAD_DIM)[:, None] + dims[None, :],
            mask=(split < filled)[:, None] & (dims < HEAD_DIM)[None, :],
            other=0.0,
        )
        new_largest = tl.maximum(largest, tl.max(log_sum, 0))
        weights = tl.exp2(log_sum - new_largest)
        decay = tl.exp2(largest - new_largest)
        acc = acc * decay + tl.sum(weights[:, None] * partial, 0)
        total = total * decay + tl.sum(weights, 0)
        largest = new_largest
    result = acc / tl.where(total > 0.0, total, 1.0)
    out_at = out_ptr + token * out_token_stride + head * out_head_stride + dims
    tl.store(out_at, result.to(out_ptr.dtype.element_ty), mask=dims < HEAD_DIM)
