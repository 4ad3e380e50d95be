"""What checks of the kernels share, here and in `bench/gpu_check.sh`: cases, NaN-filled outputs, comparison."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import torch

from kvik_kernels.kv_write.naive import naive_kv_write
from kvik_kernels.quantised import keep, page_views, vector_bytes

KEPT = {
    "int8": (torch.int8, True),
    "fp8": (torch.float8_e4m3fn, False),
    "fp8-dynamic": (torch.float8_e4m3fn, True),
    "int4": (torch.uint8, True),
}
"""By name, the dtype that a quantised cache keeps, and whether it has scales."""
GARBAGE_BLOCK = 2**30
"""Stands in block tables past each sequence: a kernel that follows it reads far outside every pool."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a batch: `queries` new tokens at the end of a sequence of `seq_len`.

    A row with seq_len 0 is padding: its table names scratch block 0 and its query sees nothing.
    """

    seq_len: int
    queries: int


@dataclass(frozen=True, slots=True)
class PagedCase:
    """Arguments of one attention call over a shuffled pool, with NaN in every slot that no token fills."""

    q: torch.Tensor
    """[tokens, q_heads, head_dim]"""
    k: torch.Tensor
    """[all tokens of all sequences, kv_heads, head_dim], as is in the cache; v alike."""
    v: torch.Tensor
    slots: torch.Tensor
    """int64, the slot of each k and v."""
    k_cache: torch.Tensor
    """[blocks, kv_heads, block_tokens, head_dim], a view of one layer of an engine-like buffer; v_cache alike."""
    v_cache: torch.Tensor
    block_tables: torch.Tensor
    query_starts: torch.Tensor
    seq_lens: torch.Tensor
    scale: float
    max_query_len: int
    window: int | None
    k_scales: torch.Tensor | None = None
    """bfloat16, where the cache has any (kvik_kernels.quantised); v_scales alike."""
    v_scales: torch.Tensor | None = None

    @property
    def attention_arguments(self) -> tuple[torch.Tensor, ...]:
        """The positional arguments of paged_attention."""
        return self.q, self.k_cache, self.v_cache, self.block_tables, self.query_starts, self.seq_lens

    @property
    def options(self) -> dict[str, Any]:
        """The keyword arguments of naive_paged_attention; paged_attention takes max_query_len too."""
        return {"scale": self.scale, "window": self.window, "k_scales": self.k_scales, "v_scales": self.v_scales}


def quantised_case(case: PagedCase, keys: str | None, values: str | None) -> PagedCase:
    """The same case over a cache that keeps keys and values as KEPT says of these names; None: as they are computed.

    The cache is as the engine's: in each block all of a layer's keys, a head's scales behind its vectors, then all
    values. What no token fills has scales of NaN.
    """
    parts = [
        (cache, *((cache.dtype, False) if name is None else KEPT[name]))
        for cache, name in ((case.k_cache, keys), (case.v_cache, values))
    ]
    blocks, kv_heads, block_tokens, head_dim = case.k_cache.shape
    pages = [block_tokens * vector_bytes(dtype, head_dim, scaled=scaled) for _, dtype, scaled in parts]
    layer_bytes = kv_heads * sum(pages)
    raw = torch.zeros((blocks, 3 * layer_bytes), dtype=torch.uint8, device=case.q.device)
    made: list[tuple[torch.Tensor, torch.Tensor | None]] = []
    start = layer_bytes
    for (old, dtype, scaled), page in zip(parts, pages, strict=True):
        cache, scales = page_views(raw, start, page, kv_heads, block_tokens, head_dim, dtype, scaled=scaled)
        unfilled = old.isnan().any(-1)
        vectors, kept = keep(old, dtype, scaled=scaled)
        cache.copy_(vectors)
        if dtype != old.dtype:
            # All bits of a byte set: NaN in float8_e4m3fn.
            cache.view(torch.uint8).masked_fill_(unfilled[..., None], 0xFF)
        if scales is not None and kept is not None:
            scales.copy_(kept)
            scales[unfilled] = float("nan")
        made.append((cache, scales))
        start += kv_heads * page
    (k_cache, k_scales), (v_cache, v_scales) = made
    return replace(case, k_cache=k_cache, k_scales=k_scales, v_cache=v_cache, v_scales=v_scales)


def paged_case(
    rows: Sequence[Row],
    *,
    q_heads: int,
    kv_heads: int,
    head_dim: int,
    block_tokens: int = 16,
    window: int | None = None,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    seed: int = 0,
) -> PagedCase:
    """A case for `rows`, the same for the same arguments on every device. With a window, blocks that no query of a row
    sees are given back: NaN, and garbage in its table."""
    generator = torch.Generator().manual_seed(seed)
    counts = [-(-row.seq_len // block_tokens) for row in rows]
    free = (torch.randperm(sum(counts), generator=generator) + 1).tolist()
    tables = torch.full((len(rows), max(counts) + 3), GARBAGE_BLOCK, dtype=torch.int32)
    slots: list[int] = []
    for index, (row, count) in enumerate(zip(rows, counts, strict=True)):
        blocks = [free.pop() for _ in range(count)]
        tables[index, :count] = torch.tensor(blocks, dtype=torch.int32)
        if row.seq_len == 0:
            tables[index, 0] = 0
        slots += [blocks[token // block_tokens] * block_tokens + token % block_tokens for token in range(row.seq_len)]
    # [blocks, layers, keys and values, ...]: the engine's buffer, whose layers are strided views.
    buffer = torch.full((sum(counts) + 1, 3, 2, kv_heads, block_tokens, head_dim), float("nan"), dtype=dtype)
    k = torch.randn((len(slots), kv_heads, head_dim), generator=generator).to(dtype)
    v = torch.randn((len(slots), kv_heads, head_dim), generator=generator).to(dtype)
    q = torch.randn((sum(row.queries for row in rows), q_heads, head_dim), generator=generator).to(dtype)
    slot_tensor = torch.tensor(slots, dtype=torch.int64)
    naive_kv_write(k, v, buffer[:, 1, 0], buffer[:, 1, 1], slot_tensor)
    for row, table in zip(rows, tables, strict=True):
        behind = 0 if window is None else max(0, row.seq_len - row.queries + 1 - window) // block_tokens
        buffer[table[:behind].long()] = float("nan")
        table[:behind] = GARBAGE_BLOCK
    buffer = buffer.to(device)
    starts = torch.tensor([0, *(row.queries for row in rows)]).cumsum(0).to(torch.int32)
    return PagedCase(
        q=q.to(device),
        k=k.to(device),
        v=v.to(device),
        slots=slot_tensor.to(device),
        k_cache=buffer[:, 1, 0],
        v_cache=buffer[:, 1, 1],
        block_tables=tables.to(device),
        query_starts=starts.to(device),
        seq_lens=torch.tensor([row.seq_len for row in rows], dtype=torch.int32, device=device),
        scale=head_dim**-0.5,
        max_query_len=max(row.queries for row in rows),
        window=window,
    )


@contextmanager
def nan_filled_outputs() -> Iterator[None]:
    """Let torch.empty and torch.empty_like give NaN, not what lay in memory, so that an unwritten output fails."""

    def filled(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def made(*arguments: Any, **options: Any) -> torch.Tensor:
            tensor = make(*arguments, **options)
            return tensor.fill_(float("nan")) if tensor.is_floating_point() else tensor

        return made

    with (
        mock.patch.object(torch, "empty", filled(torch.empty)),
        mock.patch.object(torch, "empty_like", filled(torch.empty_like)),
    ):
        yield


def assert_close(name: str, got: torch.Tensor, want: torch.Tensor, *, atol: float, rtol: float) -> None:
    """Raise AssertionError, with the name and the worst element, unless got = want ± (atol + rtol |want|).

    Compared in float32. NaN in `got` is never close.
    """
    assert got.shape == want.shape, f"{name}: shape {list(got.shape)}, want {list(want.shape)}"
    if got.numel() == 0:
        return
    excess = (got.float() - want.float()).abs() - (atol + rtol * want.float().abs())
    excess = torch.where(excess.isnan(), float("inf"), excess).flatten()
    worst = int(excess.argmax())
    if excess[worst] > 0:
        wrong = int((excess > 0).sum())
        index = [int(part) for part in torch.unravel_index(torch.tensor(worst), got.shape)]
        raise AssertionError(
            f"{name}: {wrong} of {got.numel()} elements differ; worst at {index}: "
            f"{got.flatten()[worst].item()}, want {want.flatten()[worst].item()}"
        )


def tolerance(dtype: torch.dtype) -> dict[str, float]:
    """Bounds for attention in `dtype` against float32 truth on unit-variance input: a few roundings of the result."""
    return {
        torch.float32: {"atol": 2e-5, "rtol": 2e-5},
        torch.float16: {"atol": 3e-3, "rtol": 3e-3},
        torch.bfloat16: {"atol": 2e-2, "rtol": 2e-2},
    }[dtype]
