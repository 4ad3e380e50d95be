"""The CPU kernels' attention against its plain torch truth, for every instruction set that this CPU has."""

import itertools
import mmap
from dataclasses import replace

import numpy as np
import pytest
import torch

from kvik_kernels.cpu.attention import PagedQueries, Query, splits_of
from kvik_kernels.cpu.library import InstructionSet, load_library
from kvik_kernels.paged_attention.naive import naive_paged_attention
from kvik_kernels.testing import PagedCase, Row, assert_close, nan_filled_outputs, paged_case, tolerance
from tests.support.cpu_kernels import SETS, needs_kernels

pytestmark = needs_kernels
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
HEADS = {"group1": (2, 2), "group3": (9, 3), "group7": (7, 1), "group8": (16, 2)}
WIDTHS = [16, 64, 80, 96, 128, 256]
LONG = pytest.mark.long
# One split, its end, one token more, several; verified drafts; nothing seen.
ROWS = [Row(37, 3), Row(1, 1), Row(0, 1), Row(256, 1), Row(257, 1), Row(700, 2)]
LINUX_MAP_NORESERVE = 0x4000  # in the mmap module from Python 3.13 on

every_set = pytest.mark.parametrize("instruction_set", SETS, ids=lambda each: each.name)


def queries_of(case: PagedCase) -> list[Query]:
    queries = []
    starts = case.query_starts.tolist()
    for row, seq_len in enumerate(case.seq_lens.tolist()):
        count = starts[row + 1] - starts[row]
        for end in range(seq_len - count + 1, seq_len + 1):
            first = 0 if case.window is None else max(0, end - case.window)
            queries.append(Query(row, first, max(0, end)))
    return queries


def attend(
    case: PagedCase, instruction_set: InstructionSet | None = None, *, threads: int = 2, only: slice = slice(None)
) -> torch.Tensor:
    blocks, kv_heads, block_tokens, width = case.k_cache.shape
    paged = PagedQueries(
        load_library(),
        queries_of(case)[only],
        case.block_tables,
        kv_heads=kv_heads,
        group=case.q.shape[1] // kv_heads,
        width=width,
        blocks=blocks,
        block_tokens=block_tokens,
        dtype=case.q.dtype,
        threads=threads,
        instruction_set=instruction_set,
    )
    with nan_filled_outputs():
        return paged.attend(case.q[only], case.k_cache, case.v_cache, scale=case.scale)


def check(case: PagedCase, instruction_set: InstructionSet) -> None:
    want = naive_paged_attention(*case.attention_arguments, **case.options)
    assert_close("out", attend(case, instruction_set), want, **tolerance(case.q.dtype))


@every_set
@pytest.mark.parametrize(
    ("heads", "dtype", "width"),
    [
        pytest.param(
            HEADS[group],
            dtype,
            width,
            id=f"{group}-{dtype}-{width}",
            # A quarter, in which each pair occurs but for few; the whole product runs in `make test-all`.
            marks=() if sum(map(list.index, (list(HEADS), DTYPES, WIDTHS), (group, dtype, width))) % 4 == 1 else LONG,
        )
        for group, dtype, width in itertools.product(HEADS, DTYPES, WIDTHS)
    ],
)
def test_rows_of_all_lengths_equal_the_truth_beside_nan_and_garbage(
    instruction_set: InstructionSet, heads: tuple[int, int], dtype: torch.dtype, width: int
) -> None:
    for block_tokens, window in itertools.product((1, 16, 32), (None, 7, 300)):
        case = paged_case(
            ROWS,
            q_heads=heads[0],
            kv_heads=heads[1],
            head_dim=width,
            block_tokens=block_tokens,
            window=window,
            dtype=dtype,
        )
        check(case, instruction_set)


@every_set
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_hundred_thousand_tokens_equal_the_truth(instruction_set: InstructionSet, dtype: torch.dtype) -> None:
    check(paged_case([Row(100_000, 1)], q_heads=3, kv_heads=1, head_dim=64, dtype=dtype), instruction_set)


@every_set
def test_scores_far_apart_neither_overflow_nor_vanish(instruction_set: InstructionSet) -> None:
    case = paged_case([Row(600, 1)], q_heads=2, kv_heads=1, head_dim=64)
    case.q.mul_(100)

    check(case, instruction_set)


@every_set
def test_a_query_that_is_not_finite_is_answered_by_nan_and_spoils_no_other(instruction_set: InstructionSet) -> None:
    case = paged_case([Row(600, 1), Row(40, 1), Row(300, 1)], q_heads=3, kv_heads=1, head_dim=64)
    sound = attend(case, instruction_set)
    case.q[0] = float("nan")
    out = attend(case, instruction_set)

    assert out[0].isnan().all()
    assert torch.equal(out[1:], sound[1:])


@every_set
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_neither_threads_nor_neighbours_change_a_bit(instruction_set: InstructionSet, dtype: torch.dtype) -> None:
    case = paged_case([*ROWS, Row(5000, 1)], q_heads=9, kv_heads=3, head_dim=64, dtype=dtype)
    together = attend(case, instruction_set, threads=1)

    for threads in (2, 3, 8):
        assert torch.equal(attend(case, instruction_set, threads=threads), together)
    for query in range(case.q.shape[0]):
        only = slice(query, query + 1)
        assert torch.equal(attend(case, instruction_set, only=only), together[only])


@every_set
def test_a_pool_of_more_than_2_to_the_31_elements_is_indexed_right(instruction_set: InstructionSet) -> None:
    """int32 block * stride would wrap. Untouched pages take no memory."""
    case = paged_case([Row(40, 1)], q_heads=2, kv_heads=1, head_dim=64, dtype=torch.float16)
    stride = 1 << 24
    blocks = [0, 200, 150, 260]
    memory = mmap.mmap(-1, (blocks[-1] + 1) * stride * 2, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | LINUX_MAP_NORESERVE)
    pool = torch.from_numpy(np.frombuffer(memory, dtype=np.float16))
    far = {}
    for part, cache in (("k_cache", case.k_cache), ("v_cache", case.v_cache)):
        offset = 0 if part == "k_cache" else 1 << 12
        far[part] = pool[offset:].as_strided((blocks[-1] + 1, *cache.shape[1:]), (stride, *cache.stride()[1:]))
        for near, away in enumerate(blocks):
            far[part][away].copy_(cache[near])
    want = attend(case, instruction_set)
    tables = torch.tensor(blocks, dtype=torch.int32)[case.block_tables[:, :3].long()]
    paged = PagedQueries(
        load_library(),
        [Query(0, 0, 40)],
        tables,
        kv_heads=1,
        group=2,
        width=64,
        blocks=blocks[-1] + 1,
        block_tokens=16,
        dtype=torch.float16,
        threads=1,
        instruction_set=instruction_set,
    )

    assert torch.equal(paged.attend(case.q, far["k_cache"], far["v_cache"], scale=case.scale), want)


@pytest.mark.parametrize(("seen", "splits"), [(0, 1), (1, 1), (256, 1), (257, 2), (100_000, 391)], ids=str)
def test_the_past_is_split_by_its_own_length_alone(seen: int, splits: int) -> None:
    assert splits_of(Query(0, 0, seen)) == splits_of(Query(3, 1000, 1000 + seen)) == splits


def test_arguments_that_do_not_fit_are_named() -> None:
    case = paged_case([Row(40, 1)], q_heads=2, kv_heads=1, head_dim=64)

    def queries(tables: torch.Tensor = case.block_tables, width: int = 64, block_tokens: int = 16) -> PagedQueries:
        return PagedQueries(
            load_library(),
            [Query(0, 0, 40)],
            tables,
            kv_heads=1,
            group=2,
            width=width,
            blocks=len(case.k_cache),
            block_tokens=block_tokens,
            dtype=torch.float32,
            threads=1,
        )

    for width in (0, 40, 272):
        with pytest.raises(ValueError, match="width"):
            queries(width=width)
    with pytest.raises(ValueError, match="block_tokens"):
        queries(block_tokens=0)
    with pytest.raises(TypeError, match="block_tables"):
        queries(tables=case.block_tables.long())
    with pytest.raises(ValueError, match="query"):
        queries().attend(case.q[:, :1], case.k_cache, case.v_cache, scale=1.0)
    with pytest.raises(TypeError, match="values"):
        queries().attend(case.q, case.k_cache, case.v_cache.half(), scale=1.0)
    with pytest.raises(ValueError, match="keys"):
        queries().attend(case.q, case.k_cache.transpose(2, 3), case.v_cache, scale=1.0)
    with pytest.raises(ValueError, match="values"):
        queries().attend(case.q, case.k_cache, case.v_cache[:-1], scale=1.0)


def plan(query: Query, tables: list[list[int]]) -> PagedQueries:
    """Beside a query that sees nothing, over a cache of 5 blocks of 16 tokens."""
    return PagedQueries(
        load_library(),
        [Query(0, 0, 0), query],
        torch.tensor(tables, dtype=torch.int32),
        kv_heads=1,
        group=2,
        width=64,
        blocks=5,
        block_tokens=16,
        dtype=torch.float32,
        threads=1,
    )


@pytest.mark.parametrize(
    "query",
    [
        Query(2, 0, 40),
        Query(-1, 0, 40),
        Query(1, -1, 40),
        Query(1, 41, 40),
        Query(1, 0, 49),
        Query(1, 49, 49),
        Query(1, 0, 1 << 60),
    ],
    ids=str,
)
def test_a_query_outside_its_block_tables_is_refused(query: Query) -> None:
    """A kernel would read past the table, and then at any address."""
    with pytest.raises(ValueError, match=r"queries: .* 2 rows of 3 blocks"):
        plan(query, [[0, 0, 0], [1, 2, 3]])


@pytest.mark.parametrize("block", [-1, 5, (1 << 31) - 1])
@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_seen_block_that_the_cache_does_not_have_is_refused(block: int, at: int) -> None:
    table = [1, 2, 4]
    table[at] = block

    with pytest.raises(ValueError, match=r"block_tables: .* none of 5"):
        plan(Query(1, 0, 33), [[0, 0, 0], table])


def test_blocks_that_no_query_sees_may_be_anything() -> None:
    """Those behind a window have other owners by now, and those past the end have none."""
    plan(Query(1, 16, 32), [[-1, 9, 9], [77, 4, -1]])


def test_an_instruction_set_that_this_cpu_lacks_is_refused() -> None:
    with pytest.raises(ValueError, match="instruction_set: this CPU has no AVX512"):
        PagedQueries(
            replace(load_library(), best=InstructionSet.AVX2),
            [Query(0, 0, 1)],
            torch.zeros(1, 1, dtype=torch.int32),
            kv_heads=1,
            group=1,
            width=64,
            blocks=1,
            block_tokens=16,
            dtype=torch.float32,
            threads=1,
            instruction_set=InstructionSet.AVX512,
        )
