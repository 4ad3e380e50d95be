"""Attention of single queries, a few for each row, over the blocks where keys and values lie."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from kvik_kernels.checks import require_all_fit, require_dtype, require_positive, require_shape, require_unit_stride
from kvik_kernels.cpu.library import DTYPES, STORED, InstructionSet, Kernel, Library
from kvik_kernels.cpu.recording import ReadAnew
from kvik_kernels.cpu.scales import kept_dtype, scale_arguments
from kvik_kernels.cpu.structs import SPLIT_TOKENS, Layer, Queries
from kvik_kernels.quantised import kept_width

if TYPE_CHECKING:
    import torch

WIDTH_MULTIPLE, MOST_WIDTH = 16, 256
ONE_THREAD_TOKENS = 1024
"""Tokens, times KV heads, below which waking a second thread takes longer than it saves."""


class Query(NamedTuple):
    """One query token, and the keys of its row that it sees: those at [first, end)."""

    table: int
    """Its row of the block tables."""
    first: int
    end: int


class PagedQueries(ReadAnew):
    """The queries of one step, to be attended for in each layer."""

    def __init__(
        self,
        library: Library,
        queries: Sequence[Query],
        block_tables: torch.Tensor,
        *,
        kv_heads: int,
        group: int,
        width: int,
        blocks: int,
        block_tokens: int,
        dtype: torch.dtype,
        key_dtype: torch.dtype | None = None,
        value_dtype: torch.dtype | None = None,
        threads: int,
        instruction_set: InstructionSet | None = None,
    ) -> None:
        """block_tables: int32 `[rows, blocks]`; only the entries of blocks that a query sees are read. group: query
        heads of one KV head. blocks: of the cache. dtype: of queries and results; key_dtype, value_dtype: of the cache,
        when not the same, as kvik_kernels.quantised has them. instruction_set: the best one when None. The result does
        not depend on `threads`.

        Raises TypeError or ValueError for an argument that does not fit, naming it.
        """
        import torch

        require_shape("block_tables", block_tables, (None, None))
        require_dtype("block_tables", block_tables, torch.int32)
        require_unit_stride("block_tables", block_tables)
        if not serves(width, dtype):
            raise ValueError(f"width: {width} elements of {dtype} are not served")
        if instruction_set is not None and instruction_set > library.best:
            raise ValueError(f"instruction_set: this CPU has no {instruction_set.name}, at best {library.best.name}")
        require_positive("block_tokens", block_tokens)
        heads = kv_heads * group
        self._library = library
        self._set = instruction_set or library.best
        self._shape = (len(queries), heads, width)
        self._dtype = dtype
        self._kept = (kept_dtype("key_dtype", key_dtype, dtype), kept_dtype("value_dtype", value_dtype, dtype))
        self._width = width
        self._caches = [(blocks, kv_heads, block_tokens, kept_width(each, width)) for each in self._kept]
        splits, numbers = 0, list[int]()
        for query in queries:
            numbers += (*query, splits)
            splits += splits_of(query)
        self._queries = torch.tensor(numbers, dtype=torch.int64)
        self._tables = block_tables
        self._require_all_inside(queries, blocks, block_tokens)
        self._partials = torch.empty((splits, heads, width + 2) if splits > len(queries) else 0, dtype=torch.float32)
        self._pending = torch.empty((len(queries), kv_heads), dtype=torch.int32)
        self._kind = (self._shape, self._dtype, self._kept, self._caches)
        seen = sum(query.end - query.first for query in queries) * kv_heads
        self._all = Queries(
            self._queries.data_ptr(),
            block_tables.data_ptr(),
            block_tables.stride(0),
            len(queries),
            splits,
            kv_heads,
            group,
            width,
            block_tokens,
            *(STORED[str(each)] for each in (dtype, *self._kept)),
            self._partials.data_ptr(),
            self._pending.data_ptr(),
            threads if seen > ONE_THREAD_TOKENS else 1,
        )

    def _require_all_inside(self, queries: Sequence[Query], blocks: int, block_tokens: int) -> None:
        """The kernels follow what they are given: a wrong entry would read another request's keys, or no cache."""
        tables = self._tables
        fitting = self._library.functions.kvik_queries_that_fit(
            self._queries.data_ptr(),
            len(queries),
            tables.data_ptr(),
            tables.stride(0),
            *tables.shape,
            blocks,
            block_tokens,
        )
        if fitting < len(queries):
            query, (rows, columns) = queries[fitting], tables.shape
            if 0 <= query.table < rows and 0 <= query.first <= query.end <= columns * block_tokens:
                raise ValueError(f"block_tables: a block that {query} sees is none of {blocks}")
            raise ValueError(f"queries: {query} is not inside block tables of {rows} rows of {columns} blocks")

    def attend(
        self,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        key_scales: torch.Tensor | None = None,
        value_scales: torch.Tensor | None = None,
        *,
        scale: float,
    ) -> torch.Tensor:
        """query: `[queries, heads, width]` in the order of the queries, heads of one KV head side by side; keys,
        values: strided views `[blocks, kv_heads, block_tokens, width]`, of half the width in 4 bits. Returns `[queries,
        heads, width]`, zeros for a query that sees nothing. Accumulated in float32. Scales: bfloat16 views, where keys
        or values have some (kvik_kernels.quantised).

        Raises TypeError or ValueError for an argument that does not fit, naming it.
        """
        import torch

        key_dtype, value_dtype = self._kept
        require_all_fit(self._dtype, ("query", query, self._shape))
        require_all_fit(key_dtype, ("keys", keys, self._caches[0]))
        require_all_fit(value_dtype, ("values", values, self._caches[1]))
        out = torch.empty(self._shape, dtype=self._dtype)
        layer = Layer(
            query.data_ptr(),
            keys.data_ptr(),
            values.data_ptr(),
            out.data_ptr(),
            query.stride()[:2],
            keys.stride()[:3],
            values.stride()[:3],
            out.stride()[:2],
            *scale_arguments(keys, key_scales, values, value_scales, self._width),
            scale,
        )
        self._library.run(Kernel.ATTEND, self._set, layer, self._all)
        return out


def serves(width: int, dtype: torch.dtype) -> bool:
    """Whether heads of so many elements are computed here."""
    return str(dtype) in DTYPES and 0 < width <= MOST_WIDTH and width % WIDTH_MULTIPLE == 0


def splits_of(query: Query) -> int:
    """Parts that a query's past is computed in, which threads may share. One that sees nothing is still answered."""
    return max(1, -(-(query.end - query.first) // SPLIT_TOKENS))
