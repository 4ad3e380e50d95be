"""Backends over quantised caches against the kernels' naive truth: dequantise, then attend."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch

from kvik_engine.attention.backend import AttentionBackend, AttentionBatch
from kvik_engine.attention.cpu_backend import CpuBackend
from kvik_engine.attention.cpu_dequantised import DequantisingPath
from kvik_engine.attention.cpu_in_place import KernelPath
from kvik_engine.attention.kv_cache import KVCache, LayerCache
from kvik_engine.attention.kv_layout import QUANTISED, KVFormats
from kvik_engine.attention.reference import ReferenceBackend
from kvik_kernels.cpu.library import load_library
from kvik_kernels.kv_write.naive import naive_kv_write
from kvik_kernels.paged_attention.naive import naive_paged_attention
from tests.support.cpu_kernels import needs_kernels
from tests.support.kv_layouts import one_group
from tests.support.paged_steps import NAN

HEADS, KV_HEADS, WIDTH, LAYERS = 9, 3, 64, 3
MIXES = {
    "decodes": ([0, 3, 130, 17], [1] * 4),
    "whole prompts": ([0, 0], [5, 33]),
    "chunks, drafts and decodes": ([16, 7, 40, 300, 9], [16, 3, 11, 1, 1]),
}
PAIRS = [
    ("int8", "int8"),
    ("fp8", "fp8"),
    ("int4", "int4"),
    ("int8", "int4"),
    ("int8", "fp8-dynamic"),
    ("fp8", "auto"),
    ("auto", "int8"),
]
BACKENDS: dict[str, Callable[[], AttentionBackend]] = {
    "reference": ReferenceBackend,
    "torch": lambda: CpuBackend(DequantisingPath()),
    "kernels": lambda: CpuBackend(KernelPath(load_library(), heads=HEADS)),
}
every_backend = pytest.mark.parametrize(
    "backend",
    [pytest.param(made, id=name, marks=needs_kernels if name == "kernels" else ()) for name, made in BACKENDS.items()],
)


def new_cache(pair: tuple[str, str], blocks: int, block_tokens: int) -> KVCache:
    formats = KVFormats.of("fp32", *pair)
    layout = one_group(layers=LAYERS, kv_heads=KV_HEADS, head_dim=WIDTH, block_tokens=block_tokens, formats=formats)
    cache = KVCache(blocks=blocks, layout=layout, dtype=torch.float32, device=torch.device("cpu"))
    cache.regions[1:] = NAN
    return cache


def write_naively(cache: LayerCache, key: torch.Tensor, value: torch.Tensor, slots: torch.Tensor) -> None:
    naive_kv_write(key, value, cache.keys, cache.values, slots, k_scales=cache.key_scales, v_scales=cache.value_scales)


def attend_naively(cache: LayerCache, batch: AttentionBatch, query: torch.Tensor) -> torch.Tensor:
    return naive_paged_attention(
        query,
        cache.keys,
        cache.values,
        batch.block_tables,
        batch.query_starts,
        batch.seq_lens,
        scale=WIDTH**-0.5,
        window=batch.window,
        k_scales=cache.key_scales,
        v_scales=cache.value_scales,
    )


def batch_of(
    starts: Sequence[int], lengths: Sequence[int], block_tokens: int, window: int | None
) -> tuple[AttentionBatch, list[int], int]:
    """With blocks in no order; the slots of what is in the cache before; how many blocks there are."""
    counts = [-(-(start + length) // block_tokens) for start, length in zip(starts, lengths, strict=True)]
    order = (torch.randperm(sum(counts), generator=torch.Generator().manual_seed(1)) + 1).tolist()
    tables = torch.zeros((len(starts), max(counts) + 2), dtype=torch.int32)
    past, new = list[int](), list[int]()
    for row, (start, length, count) in enumerate(zip(starts, lengths, counts, strict=True)):
        blocks, order = order[:count], order[count:]
        tables[row, :count] = torch.tensor(blocks)
        slots = [blocks[t // block_tokens] * block_tokens + t % block_tokens for t in range(start + length)]
        past += slots[:start]
        new += slots[start:]
    batch = AttentionBatch(
        starts=starts,
        lengths=lengths,
        block_tables=tables,
        query_starts=torch.tensor([0, *lengths]).cumsum(0),
        seq_lens=torch.tensor(starts) + torch.tensor(lengths),
        slots=torch.tensor(new),
        window=window,
    )
    return batch, past, sum(counts)


@every_backend
@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
@pytest.mark.parametrize("mix", MIXES.values(), ids=MIXES)
@pytest.mark.parametrize(("block_tokens", "window"), [(16, None), (8, 20)], ids=["full", "window"])
def test_a_backend_writes_the_bytes_and_gives_the_answer_of_the_truth(
    backend: Callable[[], AttentionBackend],
    pair: tuple[str, str],
    mix: tuple[list[int], list[int]],
    block_tokens: int,
    window: int | None,
) -> None:
    """What no token fills is NaN, or has scales of NaN."""
    batch, past, blocks = batch_of(*mix, block_tokens, window)
    draw = torch.Generator().manual_seed(2)
    got, want = (new_cache(pair, blocks, block_tokens) for _ in range(2))
    before = torch.randn(2, len(past), KV_HEADS, WIDTH, generator=draw)
    key, value = torch.randn(2, len(batch.slots), KV_HEADS, WIDTH, generator=draw)
    query = torch.randn(len(batch.slots), HEADS, WIDTH, generator=draw)
    for cache in (got, want):
        write_naively(cache.layers[1], *before, torch.tensor(past, dtype=torch.int64))
    write_naively(want.layers[1], key, value, batch.slots)
    step = backend().plan(batch, got)
    step.write(key, value, got.layers[1])
    out = step.attend(query, got.layers[1], scale=WIDTH**-0.5)

    assert torch.equal(got.regions, want.regions)
    torch.testing.assert_close(out, attend_naively(want.layers[1], batch, query), atol=2e-5, rtol=2e-5)


@every_backend
@pytest.mark.parametrize("kept", QUANTISED)
def test_one_infinite_value_in_fp16_spoils_no_token_that_does_not_see_it(
    backend: Callable[[], AttentionBackend], kept: str
) -> None:
    """What was kept of it lay above the largest number of fp16, and tokens saw that infinity with a weight of 0."""
    formats = KVFormats.of("fp16", kept, kept)
    layout = one_group(layers=1, kv_heads=KV_HEADS, head_dim=WIDTH, block_tokens=16, formats=formats)
    cache = KVCache(blocks=1, layout=layout, dtype=torch.float16, device=torch.device("cpu"))
    batch, _, _ = batch_of([0], [12], 16, None)
    key, value = torch.randn(2, 12, KV_HEADS, WIDTH, generator=torch.Generator().manual_seed(4)).half()
    value[9, 0, 3] = torch.inf
    query = torch.randn(12, HEADS, WIDTH, generator=torch.Generator().manual_seed(5)).half()
    step = backend().plan(batch, cache)
    step.write(key, value, cache.layers[0])
    assert step.attend(query, cache.layers[0], scale=WIDTH**-0.5)[:9].isfinite().all()


@every_backend
@pytest.mark.parametrize("kept", QUANTISED)
def test_a_tokens_bytes_do_not_depend_on_the_chunks_that_it_was_written_in(
    backend: Callable[[], AttentionBackend], kept: str
) -> None:
    key, value = torch.randn(2, 24, KV_HEADS, WIDTH, generator=torch.Generator().manual_seed(4))
    regions = []
    for chunks in ([24], [1] * 24, [7, 9, 8]):
        cache = new_cache((kept, kept), 4, 8)
        at = 0
        for length in chunks:
            batch = AttentionBatch(
                starts=[at],
                lengths=[length],
                block_tables=torch.tensor([[2, 4, 1]], dtype=torch.int32),
                query_starts=torch.tensor([0, length]),
                seq_lens=torch.tensor([at + length]),
                slots=torch.tensor([(2, 4, 1)[t // 8] * 8 + t % 8 for t in range(at, at + length)]),
            )
            tokens = slice(at, at + length)
            backend().plan(batch, cache).write(key[tokens], value[tokens], cache.layers[2])
            at += length
        regions.append(cache.regions)

    assert torch.equal(regions[0], regions[1])
    assert torch.equal(regions[0], regions[2])


@pytest.mark.parametrize(
    ("pair", "least"),
    [
        (("int8", "int8"), 1.9),
        (("fp8", "fp8"), 2.0),
        (("int8", "int4"), 2.4),
        (("int4", "int4"), 3.0),
        (("int8", "auto"), 1.3),
    ],
)
def test_capacity_with_scales_counted(pair: tuple[str, str], least: float) -> None:
    """Of heads of 64 against bf16, as the demo model has them."""

    def block_bytes(key: str, value: str) -> int:
        return new_cache((key, value), 1, 16).layout.block_bytes

    plain = block_bytes("bf16", "bf16")
    assert plain == LAYERS * 2 * KV_HEADS * 16 * WIDTH * 2
    assert plain / block_bytes(pair[0], "bf16" if pair[1] == "auto" else pair[1]) >= least


@pytest.mark.parametrize("pair", [("int8", "auto"), ("int8", "int4")], ids="-".join)
def test_layers_of_a_quantised_cache_do_not_overlap_and_fill_the_block(pair: tuple[str, str]) -> None:
    cache = new_cache(pair, 1, 16)
    seen = torch.zeros(cache.regions[1].shape, dtype=torch.int64)
    for layer in cache.layers:
        for part in (layer.keys, layer.key_scales, layer.values, layer.value_scales):
            if part is None:
                continue
            cache.regions.zero_()
            part[1].view(torch.uint8).fill_(0xFF)
            seen += cache.regions[1] == 0xFF

    assert (seen == 1).all()
