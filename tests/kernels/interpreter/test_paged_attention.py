"""paged_attention in Triton's interpreter against its plain torch truth.

float32 and float16 only: `tl.dot` of bfloat16 returns garbage in the interpreter.
"""

import itertools
import mmap

import numpy as np
import pytest
import torch

from kvik_kernels import paged_attention
from kvik_kernels.paged_attention.naive import naive_paged_attention
from kvik_kernels.testing import PagedCase, Row, assert_close, paged_case, tolerance

MIXED = [Row(37, 37), Row(50, 1), Row(61, 13), Row(1, 1), Row(20, 3)]
DECODE = [Row(1, 1), Row(37, 1), Row(64, 1), Row(130, 1)]
LINUX_MAP_NORESERVE = 0x4000  # in the mmap module from Python 3.13 on
HEADS = {"group1": (2, 2), "group3": (9, 3), "group8": (16, 2)}


def attend(case: PagedCase) -> torch.Tensor:
    return paged_attention(*case.attention_arguments, **case.options, max_query_len=case.max_query_len)


def check(case: PagedCase) -> None:
    want = naive_paged_attention(*case.attention_arguments, **case.options)
    assert_close("out", attend(case), want, **tolerance(case.q.dtype))


# Each pair of (heads, block length, head dim, dtype, rows) occurs; the whole product runs in `make test-all`.
PAIRS = [
    ("group1", 8, 64, torch.float32, "mixed"),
    ("group1", 16, 128, torch.float16, "decode"),
    ("group1", 32, 80, torch.float32, "decode"),
    ("group3", 8, 128, torch.float32, "decode"),
    ("group3", 16, 80, torch.float16, "mixed"),
    ("group3", 16, 64, torch.float32, "mixed"),
    ("group3", 32, 64, torch.float16, "decode"),
    ("group8", 8, 80, torch.float16, "decode"),
    ("group8", 16, 64, torch.float32, "decode"),
    ("group8", 32, 128, torch.float32, "mixed"),
]
PRODUCT = list(
    itertools.product(HEADS, (8, 16, 32), (64, 80, 128), (torch.float32, torch.float16), ("mixed", "decode"))
)


def name(case: tuple[str, int, int, torch.dtype, str]) -> str:
    heads, block_tokens, head_dim, dtype, rows = case
    return f"{rows}-{heads}-block{block_tokens}-dim{head_dim}-{str(dtype).removeprefix('torch.')}"


@pytest.mark.parametrize(
    "shape",
    [
        pytest.param(shape, id=name(shape), marks=() if shape in PAIRS else pytest.mark.long)
        for shape in sorted(PRODUCT, key=name)
    ],
)
def test_attention_equals_naive(shape: tuple[str, int, int, torch.dtype, str]) -> None:
    heads, block_tokens, head_dim, dtype, rows = shape
    q_heads, kv_heads = HEADS[heads]
    check(
        paged_case(
            MIXED if rows == "mixed" else DECODE,
            q_heads=q_heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            block_tokens=block_tokens,
            dtype=dtype,
        )
    )


@pytest.mark.parametrize("queries", [1, 2, 15, 16, 17, 21, 22, 63])
def test_a_chunk_after_a_prefix_sees_prefix_and_itself(queries: int) -> None:
    check(paged_case([Row(queries + 70, queries), Row(queries, queries)], q_heads=9, kv_heads=3, head_dim=64))


@pytest.mark.parametrize("seq_len", [255, 256, 257, 1000, 2049])
def test_split_decode_joins_its_parts(seq_len: int) -> None:
    """Lengths around the shortest segment, with a short row that leaves most splits empty."""
    check(paged_case([Row(seq_len, 1), Row(3, 1)], q_heads=3, kv_heads=1, head_dim=64))


@pytest.mark.parametrize("window", [1, 7, 16, 20, 33, 64, 1000])
@pytest.mark.parametrize("rows", [MIXED, [Row(150, 40), Row(90, 1)], DECODE], ids=["mixed", "long", "decode"])
def test_a_window_hides_what_lies_behind_it_and_reads_none_of_it(window: int, rows: list[Row]) -> None:
    """Blocks behind the window hold NaN and their table entries lead nowhere."""
    check(paged_case(rows, q_heads=6, kv_heads=2, head_dim=24, block_tokens=8, window=window))


@pytest.mark.parametrize("window", [100, 300, 700])
def test_split_decode_divides_the_window_alone(window: int) -> None:
    check(paged_case([Row(2000, 1), Row(310, 1), Row(3, 1)], q_heads=3, kv_heads=1, head_dim=64, window=window))


def test_a_window_in_half_precision() -> None:
    check(paged_case(MIXED, q_heads=9, kv_heads=3, head_dim=64, window=21, dtype=torch.float16))


def test_split_decode_in_half_precision() -> None:
    check(paged_case([Row(900, 1)], q_heads=8, kv_heads=1, head_dim=128, dtype=torch.float16))


@pytest.mark.parametrize(("q_heads", "kv_heads"), [(32, 1), (20, 1), (17, 1)])
@pytest.mark.parametrize("rows", [[Row(40, 1)], [Row(40, 9)]], ids=["decode", "prefill"])
def test_more_heads_in_a_group_than_a_small_tile_has_rows(q_heads: int, kv_heads: int, rows: list[Row]) -> None:
    check(paged_case(rows, q_heads=q_heads, kv_heads=kv_heads, head_dim=64))


@pytest.mark.parametrize("head_dim", [1, 5, 24, 256])
@pytest.mark.parametrize("rows", [[Row(40, 1)], [Row(40, 9)]], ids=["decode", "prefill"])
def test_odd_head_dims(head_dim: int, rows: list[Row]) -> None:
    check(paged_case(rows, q_heads=4, kv_heads=2, head_dim=head_dim))


@pytest.mark.parametrize(
    "rows",
    [
        [Row(40, 1), Row(0, 1), Row(7, 1), Row(0, 1)],
        [Row(600, 1), Row(0, 1)],
        [Row(40, 9), Row(0, 1), Row(7, 7), Row(0, 1)],
    ],
    ids=["decode", "split-decode", "mixed"],
)
def test_padded_rows_on_the_scratch_block_give_zeros_and_disturb_nobody(rows: list[Row]) -> None:
    case = paged_case(rows, q_heads=6, kv_heads=2, head_dim=64)
    out = attend(case)
    assert_close("out", out, naive_paged_attention(*case.attention_arguments, scale=case.scale), atol=2e-5, rtol=2e-5)
    padded = case.query_starts[:-1][case.seq_lens == 0].long()
    assert torch.equal(out[padded], torch.zeros_like(out[padded]))


@pytest.mark.parametrize("queries", [1, 5])
def test_rows_without_queries_are_passed_over(queries: int) -> None:
    rows = [Row(9, 0), Row(40, queries), Row(12, 0), Row(0, 0), Row(5, queries), Row(3, 0)]
    check(paged_case(rows, q_heads=6, kv_heads=2, head_dim=64))


def test_tokens_past_the_last_row_are_not_written() -> None:
    case = paged_case([Row(20, 5), Row(9, 2)], q_heads=4, kv_heads=2, head_dim=64)
    q = torch.cat([case.q, torch.ones(3, 4, 64)])
    out = torch.full_like(q, 7.0)
    paged_attention(q, *case.attention_arguments[1:], scale=case.scale, max_query_len=5, out=out)
    assert torch.equal(out[7:], torch.full((3, 4, 64), 7.0))
    assert_close(
        "out", out[:7], naive_paged_attention(*case.attention_arguments, scale=case.scale), atol=2e-5, rtol=2e-5
    )


@pytest.mark.parametrize("queries", [1, 6])
def test_q_and_out_may_be_slices_of_wider_tensors(queries: int) -> None:
    """q comes out of one projection with k and v: its token stride is wider than its heads."""
    case = paged_case([Row(30, queries)], q_heads=4, kv_heads=2, head_dim=64)
    wide = torch.full((queries, 10, 64), float("nan"))
    wide[:, 3:7] = case.q
    out = torch.full((queries, 6, 64), float("nan"))
    paged_attention(
        wide[:, 3:7], *case.attention_arguments[1:], scale=case.scale, max_query_len=queries, out=out[:, 1:5]
    )
    want = naive_paged_attention(*case.attention_arguments, scale=case.scale)
    assert_close("out", out[:, 1:5], want, atol=2e-5, rtol=2e-5)
    assert out[:, 0].isnan().all()
    assert out[:, 5].isnan().all()


def test_max_query_len_is_an_upper_bound() -> None:
    """A padded batch announces its captured length; decode rows give the same through the prefill kernel."""
    case = paged_case(DECODE, q_heads=9, kv_heads=3, head_dim=64)
    out = paged_attention(*case.attention_arguments, scale=case.scale, max_query_len=64)
    assert_close("out", out, attend(case), atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("queries", [1, 4])
def test_large_scores_do_not_overflow(queries: int) -> None:
    case = paged_case([Row(80, queries)], q_heads=2, kv_heads=1, head_dim=64, dtype=torch.float16)
    case.q.mul_(200.0)
    want = naive_paged_attention(*case.attention_arguments, scale=1.0)
    out = paged_attention(*case.attention_arguments, scale=1.0, max_query_len=queries)
    assert_close("out", out, want, **tolerance(torch.float16))


@pytest.mark.parametrize("queries", [1, 4])
def test_block_offsets_pass_two_to_the_31_elements(queries: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pool of 8 GiB by its stride, few pages of it touched; a 32-bit offset would wrap to the zeros before it."""
    # After a launch the interpreter copies each storage back, here onto itself, which would touch every page.
    monkeypatch.setattr("triton.runtime.interpreter.GridExecutor._restore_args_dev", lambda *_: None)
    case = paged_case([Row(48, queries)], q_heads=2, kv_heads=1, head_dim=64, dtype=torch.float16)
    block_stride, before = 2**30, 2**31
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | LINUX_MAP_NORESERVE
    elements = np.frombuffer(mmap.mmap(-1, 2 * (before + 4 * block_stride), flags=flags), dtype=np.float16)
    shape = case.k_cache.shape
    far_k, far_v = (
        torch.from_numpy(elements).as_strided(shape, (block_stride, 1024, 64, 1), before + start) for start in (0, 2048)
    )
    far_k.copy_(case.k_cache)
    far_v.copy_(case.v_cache)
    metadata = (case.block_tables, case.query_starts, case.seq_lens)
    out = paged_attention(case.q, far_k, far_v, *metadata, scale=case.scale, max_query_len=queries)
    assert torch.equal(out, attend(case))
