"""kv_write and paged_attention over quantised caches in Triton's interpreter: the bytes of the plain torch truth, and
its attention over what they stand for."""

import itertools
import math
from dataclasses import replace

import pytest
import torch

from kvik_kernels import kv_write, paged_attention
from kvik_kernels.kv_write.naive import naive_kv_write
from kvik_kernels.paged_attention.naive import naive_paged_attention
from kvik_kernels.quantised import dequantise
from kvik_kernels.testing import KEPT, PagedCase, Row, assert_close, paged_case, quantised_case, tolerance

MIXED = [Row(37, 37), Row(50, 1), Row(61, 13), Row(1, 1), Row(20, 3)]
DECODE = [Row(1, 1), Row(37, 1), Row(0, 1), Row(300, 1)]
Pair = tuple[str | None, str | None]
PAIRS: list[Pair] = [
    ("int8", "int8"),
    ("fp8", "fp8"),
    ("fp8-dynamic", "fp8-dynamic"),
    ("int4", "int4"),
    ("int8", "int4"),
    ("int4", "fp8"),
    ("fp8", "int8"),
    ("int4", None),
    (None, "int8"),
]
"""What keys and values are kept as; None: as they are computed."""


def name(pair: Pair) -> str:
    return "-".join(each or "plain" for each in pair)


def quantised(
    rows: list[Row],
    pair: Pair,
    dtype: torch.dtype,
    *,
    q_heads: int = 9,
    kv_heads: int = 3,
    head_dim: int = 64,
    block_tokens: int = 16,
    window: int | None = None,
) -> PagedCase:
    case = paged_case(
        rows,
        q_heads=q_heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        block_tokens=block_tokens,
        dtype=dtype,
        window=window,
    )
    return quantised_case(case, *pair)


def check(case: PagedCase) -> None:
    want = naive_paged_attention(*case.attention_arguments, **case.options)
    got = paged_attention(*case.attention_arguments, **case.options, max_query_len=case.max_query_len)
    assert_close("out", got, want, **tolerance(case.q.dtype))


@pytest.mark.parametrize(
    ("pair", "rows", "dtype"),
    [
        pytest.param(pair, rows, dtype, id=f"{name(pair)}-{what}", marks=() if index % 3 == at else pytest.mark.long)
        for index, pair in enumerate(PAIRS)
        for at, (what, rows, dtype) in enumerate((("mixed", MIXED, torch.float32), ("decode", DECODE, torch.float16)))
    ],
)
def test_attention_equals_dequantising_first_in_head_groups_of_three(
    pair: Pair, rows: list[Row], dtype: torch.dtype
) -> None:
    """What no token fills has scales of NaN, and NaN for float8."""
    check(quantised(rows, pair, dtype))


@pytest.mark.parametrize("name", ["int8", "fp8-dynamic"])
@pytest.mark.parametrize("rows", [[Row(1500, 1)], [Row(1500, 2)]], ids=["decode", "two queries"])
def test_small_values_of_long_rows_stay_as_exact_in_fp16_as_large_ones(name: str, rows: list[Row]) -> None:
    """Multiplied by the scale of a small value, the weight of one key among many was a subnormal of fp16."""
    case = paged_case(rows, q_heads=2, kv_heads=1, head_dim=32, block_tokens=16, dtype=torch.float16)
    small = quantised_case(replace(case, v_cache=case.v_cache * 2.0**-7), name, name)
    want = naive_paged_attention(*small.attention_arguments, **small.options)
    got = paged_attention(*small.attention_arguments, **small.options, max_query_len=small.max_query_len)
    assert (got - want).abs().max() <= 2e-3 * want.abs().max()


@pytest.mark.parametrize(
    ("pair", "head_dim", "block_tokens"),
    [
        pytest.param(pair, *shape, id=f"{name(pair)}-{shape}", marks=() if shape in quick else pytest.mark.long)
        for pair, head_dims, quick in (
            (("int8", "fp8"), (5, 80, 128), ((80, 8), (5, 32))),
            (("int4", "int4"), (32, 96, 128), ((96, 8), (32, 32))),
        )
        for shape in itertools.product(head_dims, (8, 16, 32))
    ],
)
@pytest.mark.parametrize("rows", [MIXED, DECODE], ids=["mixed", "decode"])
def test_odd_head_dims_and_blocks(pair: Pair, rows: list[Row], head_dim: int, block_tokens: int) -> None:
    check(quantised(rows, pair, torch.float32, q_heads=4, kv_heads=2, head_dim=head_dim, block_tokens=block_tokens))


@pytest.mark.parametrize(("pair", "head_dim"), [(("int8", "int8"), 24), (("int4", "int4"), 32)], ids=str)
@pytest.mark.parametrize("rows", [MIXED, [Row(2000, 1), Row(3, 1)]], ids=["mixed", "split-decode"])
def test_a_window_reads_nothing_behind_it(pair: Pair, rows: list[Row], head_dim: int) -> None:
    check(quantised(rows, pair, torch.float32, q_heads=6, kv_heads=2, head_dim=head_dim, block_tokens=8, window=21))


def test_a_head_that_groups_of_four_bit_elements_do_not_divide_is_refused() -> None:
    with pytest.raises(ValueError, match="80 is no multiple of the 32 elements"):
        quantised([Row(4, 4)], ("int4", "int4"), torch.float32, head_dim=80)


def empty_cache(pair: Pair, dtype: torch.dtype, heads: int, width: int) -> PagedCase:
    """A cache of five blocks, all NaN."""
    case = paged_case([Row(64, 1)], q_heads=heads, kv_heads=heads, head_dim=width, dtype=dtype)
    case.k_cache.fill_(math.nan)
    case.v_cache.fill_(math.nan)
    return quantised_case(case, *pair)


@pytest.mark.parametrize(
    ("pair", "dtype", "heads", "width"),
    [
        pytest.param(
            pair,
            dtype,
            heads,
            width,
            id=f"{name(pair)}-{dtype}-{heads}x{width}",
            # A third, in which each two occur together; the whole product runs in `make test-all`.
            marks=() if (first + second + third) % 3 == 0 else pytest.mark.long,
        )
        for first, pair in enumerate(PAIRS)
        for second, dtype in enumerate((torch.float32, torch.float16, torch.bfloat16))
        for third, (heads, width) in enumerate(
            ((3, 64), (5, 96), (2, 32)) if "int4" in pair else ((3, 64), (5, 80), (2, 1))
        )
    ],
)
def test_written_bytes_are_those_of_the_truth_and_nothing_else_changes(
    pair: Pair, dtype: torch.dtype, heads: int, width: int
) -> None:
    got, want = (empty_cache(pair, dtype, heads, width) for _ in range(2))
    k, v = torch.randn(2, 12, heads, width)
    sizes = torch.logspace(-30, 4, 12)[:, None, None]
    k, v = (k * sizes).to(dtype), (v * sizes.flip(0)).to(dtype)
    k[3], v[4] = 0.0, -0.0
    v[5], v[6] = v[5].abs(), -v[6].abs()
    slots = torch.randperm(64)[:12] + 16
    for write, case in ((kv_write, got), (naive_kv_write, want)):
        write(k, v, case.k_cache, case.v_cache, slots, k_scales=case.k_scales, v_scales=case.v_scales)

    def whole(case: PagedCase) -> torch.Tensor:
        assert case.k_cache.untyped_storage().data_ptr() == case.v_cache.untyped_storage().data_ptr()
        return torch.empty(0, dtype=torch.uint8).set_(case.k_cache.untyped_storage())

    assert torch.equal(whole(got), whole(want))


@pytest.mark.parametrize("kept", KEPT)
def test_what_is_not_finite_is_kept_finite(kept: str) -> None:
    got, want = (empty_cache((kept, kept), torch.float32, 1, 64) for _ in range(2))
    k = torch.randn(3, 1, 64)
    k[0, 0, :3] = torch.tensor([math.nan, math.inf, -math.inf])
    k[1, 0, 5] = torch.finfo(torch.float32).max
    slots = torch.tensor([16, 33, 47])
    for write, case in ((kv_write, got), (naive_kv_write, want)):
        write(k, k, case.k_cache, case.v_cache, slots, k_scales=case.k_scales, v_scales=case.v_scales)

    blocks, offsets = slots // 16, slots % 16
    read = [
        dequantise(case.v_cache[blocks, 0, offsets], None if scales is None else scales[blocks, 0, offsets])
        for case, scales in ((got, got.v_scales), (want, want.v_scales))
    ]
    assert read[0].isfinite().all()
    assert torch.equal(*read)
