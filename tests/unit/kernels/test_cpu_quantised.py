"""The CPU kernels over quantised caches: the bytes that plain torch writes, its attention over what they stand for."""

import math

import pytest
import torch

from kvik_kernels.cpu.attention import PagedQueries, Query
from kvik_kernels.cpu.library import InstructionSet, load_library
from kvik_kernels.cpu.write import PagedWrites
from kvik_kernels.kv_write.naive import naive_kv_write
from kvik_kernels.paged_attention.naive import naive_paged_attention
from kvik_kernels.quantised import dequantise, keep, quantise
from kvik_kernels.testing import (
    KEPT,
    PagedCase,
    Row,
    assert_close,
    nan_filled_outputs,
    paged_case,
    quantised_case,
    tolerance,
)
from tests.support.cpu_kernels import SETS, needs_kernels

pytestmark = needs_kernels
INT8, FP8 = torch.int8, torch.float8_e4m3fn
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
Pair = tuple[str | None, str | None]
PAIRS: list[Pair] = [
    ("int8", "int8"),
    ("fp8", "fp8"),
    ("int4", "int4"),
    ("int8", "fp8-dynamic"),
    ("int8", "int4"),
    ("fp8-dynamic", "int8"),
    ("int8", None),
    ("int4", "fp8"),
    (None, "fp8"),
]
"""What keys and values are kept as; None: as they are computed."""
# One split, its end, one token more, several; verified drafts; nothing seen.
ROWS = [Row(37, 3), Row(1, 1), Row(0, 1), Row(256, 1), Row(257, 1), Row(700, 2)]


def name(pair: Pair) -> str:
    return "-".join(each or "plain" for each in pair)


every_set = pytest.mark.parametrize("instruction_set", SETS, ids=lambda each: each.name)
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)
every_pair = pytest.mark.parametrize("pair", PAIRS, ids=name)


def case_of(
    pair: Pair,
    dtype: torch.dtype,
    *,
    rows: list[Row],
    width: int = 64,
    block_tokens: int = 16,
    window: int | None = None,
) -> PagedCase:
    """Query heads in groups of three."""
    case = paged_case(
        rows, q_heads=9, kv_heads=3, head_dim=width, block_tokens=block_tokens, window=window, dtype=dtype
    )
    return quantised_case(case, *pair)


def attend(
    case: PagedCase, instruction_set: InstructionSet | None = None, *, threads: int = 2, only: slice = slice(None)
) -> torch.Tensor:
    blocks, kv_heads, block_tokens, _ = case.k_cache.shape
    queries, starts = list[Query](), case.query_starts.tolist()
    for row, seq_len in enumerate(case.seq_lens.tolist()):
        for end in range(seq_len - (starts[row + 1] - starts[row]) + 1, seq_len + 1):
            queries.append(Query(row, 0 if case.window is None else max(0, end - case.window), max(0, end)))
    paged = PagedQueries(
        load_library(),
        queries[only],
        case.block_tables,
        kv_heads=kv_heads,
        group=case.q.shape[1] // kv_heads,
        width=case.q.shape[2],
        blocks=blocks,
        block_tokens=block_tokens,
        dtype=case.q.dtype,
        key_dtype=case.k_cache.dtype,
        value_dtype=case.v_cache.dtype,
        threads=threads,
        instruction_set=instruction_set,
    )
    with nan_filled_outputs():
        return paged.attend(case.q[only], case.k_cache, case.v_cache, case.k_scales, case.v_scales, scale=case.scale)


@every_set
@pytest.mark.parametrize(
    ("dtype", "pair"),
    [
        pytest.param(
            dtype,
            pair,
            id=f"{dtype}-{name(pair)}",
            # Half of them, with each dtype and each pair; the whole product runs in `make test-all`.
            marks=() if (first + second) % 2 == 0 else pytest.mark.long,
        )
        for first, dtype in enumerate(DTYPES)
        for second, pair in enumerate(PAIRS)
    ],
)
def test_rows_of_all_lengths_equal_dequantising_first_beside_nan_and_garbage(
    instruction_set: InstructionSet, dtype: torch.dtype, pair: Pair
) -> None:
    odd, narrow = (96, 32) if "int4" in pair else (80, 16)
    for width, block_tokens, window in ((64, 16, None), (odd, 32, 7), (narrow, 8, 300), (256, 16, None)):
        case = case_of(pair, dtype, rows=ROWS, width=width, block_tokens=block_tokens, window=window)
        want = naive_paged_attention(*case.attention_arguments, **case.options)
        assert_close("out", attend(case, instruction_set), want, **tolerance(dtype))


@every_set
def test_neither_threads_nor_neighbours_change_a_bit(instruction_set: InstructionSet) -> None:
    case = case_of(("int8", "int4"), torch.bfloat16, rows=[*ROWS, Row(3000, 1)])
    together = attend(case, instruction_set, threads=1)

    assert torch.equal(attend(case, instruction_set, threads=3), together)
    for query in range(case.q.shape[0]):
        only = slice(query, query + 1)
        assert torch.equal(attend(case, instruction_set, only=only), together[only])


def test_every_float8_is_read_as_torch_reads_it() -> None:
    """All finite ones, as values of one key that is seen alone."""
    finite = torch.arange(256, dtype=torch.uint8).view(FP8)[None, None, None]
    finite = torch.where(finite.float().isnan(), 0.0, finite.float()).to(FP8)
    for instruction_set in SETS:
        paged = PagedQueries(
            load_library(),
            [Query(0, 0, 1)],
            torch.zeros(1, 1, dtype=torch.int32),
            kv_heads=1,
            group=1,
            width=256,
            blocks=1,
            block_tokens=1,
            dtype=torch.float32,
            key_dtype=FP8,
            value_dtype=FP8,
            threads=1,
            instruction_set=instruction_set,
        )
        scales = torch.full((1, 1, 1), 0.5, dtype=torch.bfloat16)
        out = paged.attend(torch.zeros(1, 1, 256), finite, finite, scales, scales, scale=1.0)
        assert torch.equal(out[0, 0], finite[0, 0, 0].float() / 2)


def written(case: PagedCase, k: torch.Tensor, v: torch.Tensor, slots: torch.Tensor) -> None:
    blocks, kv_heads, block_tokens, _ = case.k_cache.shape
    writes = PagedWrites(
        load_library(),
        slots,
        kv_heads=kv_heads,
        width=k.shape[2],
        blocks=blocks,
        block_tokens=block_tokens,
        dtype=k.dtype,
        key_dtype=case.k_cache.dtype,
        value_dtype=case.v_cache.dtype,
    )
    writes.write(k, v, case.k_cache, case.v_cache, case.k_scales, case.v_scales)


def bytes_of(case: PagedCase) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8).set_(case.k_cache.untyped_storage())


@every_dtype
@every_pair
@pytest.mark.parametrize(("groups", "block_tokens"), [(4, 16), (5, 8), (1, 32)])
def test_written_bytes_are_those_of_the_truth_and_nothing_else_changes(
    dtype: torch.dtype, pair: Pair, groups: int, block_tokens: int
) -> None:
    """Vectors of all sizes, with zeros and numbers of one sign among them."""
    width = groups * (32 if "int4" in pair else 17)
    got, want = (case_of(pair, dtype, rows=[Row(80, 1)], width=width, block_tokens=block_tokens) for _ in range(2))
    k, v = torch.randn(2, 12, 3, width)
    sizes = torch.logspace(-36, 4, 12)[:, None, None]
    k, v = (k * sizes).to(dtype), (v * sizes.flip(0)).to(dtype)
    k[3], v[4] = 0.0, -0.0
    v[5], v[6] = v[5].abs(), -v[6].abs()
    slots = torch.randperm(80)[:12] + block_tokens
    written(got, k, v.nan_to_num(), slots)
    naive_kv_write(k, v.nan_to_num(), want.k_cache, want.v_cache, slots, k_scales=want.k_scales, v_scales=want.v_scales)

    assert torch.equal(bytes_of(got), bytes_of(want))


@every_dtype
@pytest.mark.parametrize("kept", KEPT)
def test_what_is_not_finite_is_kept_finite_as_the_truth_does(dtype: torch.dtype, kept: str) -> None:
    got, want = (case_of((kept, kept), dtype, rows=[Row(32, 1)]) for _ in range(2))
    k = torch.randn(4, 3, 64)
    k[0, 0, :3] = torch.tensor([math.nan, math.inf, -math.inf])
    k = k.to(dtype)
    k[1, 1, 5] = torch.finfo(dtype).max
    k[2] = math.nan
    slots = torch.tensor([16, 33, 47, 20])
    written(got, k, k, slots)
    naive_kv_write(k, k, want.k_cache, want.v_cache, slots, k_scales=want.k_scales, v_scales=want.v_scales)

    assert torch.equal(bytes_of(got), bytes_of(want))
    at = (slots // 16, slice(None), slots % 16)
    assert dequantise(got.v_cache[at], None if got.v_scales is None else got.v_scales[at]).isfinite().all()


@pytest.mark.parametrize(("kept", "error"), [(INT8, 0.5 / 127), (FP8, 2**-4)], ids=["int8", "fp8"])
def test_no_element_is_further_off_than_half_a_step(kept: torch.dtype, error: float) -> None:
    """Of its vector's largest in int8, and of itself in float8, whose smallest steps are 2^-9 of 448."""
    vectors = torch.randn(1000, 64, generator=torch.Generator().manual_seed(3))
    off = (dequantise(*quantise(vectors, kept)) - vectors).abs()
    largest = vectors.abs().amax(-1, keepdim=True)
    allowed = largest * error if kept is INT8 else vectors.abs() * error + largest * 2.0**-10 / 448

    # The scale is rounded up to eight bits.
    assert (off <= allowed * (1 + 2**-7)).all()


def test_no_element_of_four_bits_is_further_off_than_half_a_step_of_its_group() -> None:
    """Steps are rounded up to eight bits, and the lowest number down."""
    vectors = torch.randn(1000, 64, generator=torch.Generator().manual_seed(3)) + 3.0
    off = (dequantise(*quantise(vectors, torch.uint8)) - vectors).abs().unflatten(-1, (-1, 32))
    groups = vectors.unflatten(-1, (-1, 32))
    lowest = groups.amin(-1, keepdim=True)
    steps = (groups.amax(-1, keepdim=True) - lowest + lowest.abs() * 2**-7) / 15

    assert (off <= steps / 2 * (1 + 2**-7) + 1e-6).all()


def test_float8_without_scales_keeps_what_it_holds_and_the_largest_of_what_it_does_not() -> None:
    vectors = torch.tensor([[0.0, 1.0, -2.5, 448.0, 449.0, -1e30, 2.0**-9, math.nan]])
    kept, scales = keep(vectors, FP8, scaled=False)

    assert scales is None
    assert dequantise(kept, None).tolist() == [[0.0, 1.0, -2.5, 448.0, 448.0, -448.0, 2.0**-9, 0.0]]


def test_scales_that_do_not_fit_are_named() -> None:
    case = case_of(("int8", "int8"), torch.float32, rows=[Row(32, 1)])
    plain = paged_case([Row(32, 1)], q_heads=9, kv_heads=3, head_dim=64)
    k = torch.zeros(1, 3, 64)
    assert case.k_scales is not None

    def write(k_cache: torch.Tensor, k_scales: torch.Tensor | None, key_dtype: torch.dtype | None = INT8) -> None:
        writes = PagedWrites(
            load_library(),
            torch.tensor([1]),
            kv_heads=3,
            width=64,
            blocks=len(case.k_cache),
            block_tokens=16,
            dtype=torch.float32,
            key_dtype=key_dtype,
            value_dtype=INT8,
        )
        writes.write(k, k, k_cache, case.v_cache, k_scales, case.v_scales)

    with pytest.raises(ValueError, match=r"key_scales: a cache of torch\.int8 has some"):
        write(case.k_cache, None)
    with pytest.raises(ValueError, match=r"key_scales: a cache of torch\.float32 has none"):
        write(plain.k_cache, case.k_scales, None)
    with pytest.raises(ValueError, match="key_scales: expected shape"):
        write(case.k_cache, case.k_scales[1:])
    with pytest.raises(TypeError, match="key_scales"):
        write(case.k_cache, case.k_scales.half())
    with pytest.raises(TypeError, match="keys"):
        write(plain.k_cache, case.k_scales)
    with pytest.raises(TypeError, match="key_dtype"):
        write(case.k_cache, case.k_scales, torch.float16)
