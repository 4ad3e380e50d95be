"""Backends against dense attention in plain torch, over scattered blocks, odd lengths and a poisoned cache."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from kvik_engine.attention.backend import AttentionBackend, AttentionBatch, LayerAttention
from kvik_engine.attention.cpu_backend import CpuBackend
from kvik_engine.attention.cpu_gathered import group_by_length
from kvik_engine.attention.cpu_in_place import KernelPath
from kvik_engine.attention.kv_cache import KVCache
from kvik_engine.attention.kv_layout import KVFormats
from kvik_engine.attention.reference import ReferenceBackend
from kvik_kernels.cpu.library import load_library
from tests.support.cpu_kernels import needs_kernels
from tests.support.kv_layouts import one_group
from tests.support.paged_steps import NAN

BackendFor = Callable[[int], AttentionBackend]
"""By query heads."""
LAYERS = 3
MIXES = {
    "one decode": ([0], [1]),
    "one long decode": ([130], [1]),
    "decodes of one length": ([20, 20, 20], [1, 1, 1]),
    "decodes of many lengths": ([0, 3, 4, 5, 90, 17], [1] * 6),
    "whole prompts": ([0, 0, 0], [1, 5, 33]),
    "chunks": ([16, 7, 40], [16, 3, 11]),
    "prefill mixed with decode": ([12, 0, 25, 8, 9], [1, 19, 1, 4, 1]),
}


@dataclass
class Case:
    """A step over a cache whose past is filled, and the dense truth."""

    cache: KVCache
    batch: AttentionBatch
    query: Tensor
    key: Tensor
    value: Tensor
    past: list[tuple[Tensor, Tensor]]

    def run(self, backend_for: BackendFor, layer: int = 1) -> Tensor:
        step: LayerAttention = backend_for(self.query.shape[1]).plan(self.batch, self.cache)
        step.write(self.key, self.value, self.cache.layers[layer])
        return step.attend(self.query, self.cache.layers[layer], scale=self.query.shape[-1] ** -0.5)

    def truth(self) -> Tensor:
        """Each row alone: [past + new] dense, causal."""
        outs, at = [], 0
        for (k, v), start, length in zip(self.past, self.batch.starts, self.batch.lengths, strict=True):
            keys = torch.cat((k, self.key[at : at + length])).transpose(0, 1)
            values = torch.cat((v, self.value[at : at + length])).transpose(0, 1)
            seen = torch.ones(length, start + length).tril(start).bool()
            query = self.query[at : at + length].transpose(0, 1)
            out = F.scaled_dot_product_attention(query[None], keys[None], values[None], attn_mask=seen, enable_gqa=True)
            outs.append(out[0].transpose(0, 1))
            at += length
        return torch.cat(outs)


def make(
    starts: list[int],
    lengths: list[int],
    *,
    heads: int = 6,
    kv_heads: int = 2,
    width: int = 16,
    block_tokens: int = 4,
    layer: int = 1,
    stale: float = 0.0,
    seed: int = 0,
) -> Case:
    """`stale` fills all slots that hold nothing of these rows, but for the scratch block."""
    draw = torch.Generator().manual_seed(seed)
    needed = [-(-(start + length) // block_tokens) for start, length in zip(starts, lengths, strict=True)]
    order = (torch.randperm(sum(needed) + 5, generator=draw) + 1).tolist()
    cache = KVCache(
        blocks=len(order),
        layout=one_group(layers=LAYERS, kv_heads=kv_heads, block_tokens=block_tokens, head_dim=width),
        dtype=torch.float32,
        device=torch.device("cpu"),
    )
    cache.regions[1:] = NAN if math.isnan(stale) else 0
    tables = torch.zeros((len(starts), max(needed) + 2), dtype=torch.int32)
    slots: list[int] = []
    past = []
    for row, (start, length, count) in enumerate(zip(starts, lengths, needed, strict=True)):
        blocks, order = order[:count], order[count:]
        tables[row, :count] = torch.tensor(blocks)
        places = [blocks[t // block_tokens] * block_tokens + t % block_tokens for t in range(start + length)]
        k, v = torch.randn(2, start, kv_heads, width, generator=draw)
        for t, slot in enumerate(places[:start]):
            block, offset = divmod(slot, block_tokens)
            cache.layers[layer].keys[block, :, offset] = k[t]
            cache.layers[layer].values[block, :, offset] = v[t]
        past.append((k, v))
        slots += places[start:]
    total = sum(lengths)
    ends = torch.tensor(lengths).cumsum(0)
    batch = AttentionBatch(
        starts=starts,
        lengths=lengths,
        block_tables=tables,
        query_starts=torch.cat((torch.zeros(1), ends)).long(),
        seq_lens=torch.tensor(starts) + torch.tensor(lengths),
        slots=torch.tensor(slots),
    )
    return Case(
        cache,
        batch,
        torch.randn(total, heads, width, generator=draw),
        torch.randn(total, kv_heads, width, generator=draw),
        torch.randn(total, kv_heads, width, generator=draw),
        past,
    )


def by_kernels(heads: int) -> AttentionBackend:
    return CpuBackend(KernelPath(load_library(), heads=heads))


BACKENDS: dict[str, BackendFor] = {
    "reference": lambda _: ReferenceBackend(),
    "cpu": lambda _: CpuBackend(),
    "kernels": by_kernels,
}


@pytest.fixture(
    params=[
        pytest.param(made, id=name, marks=needs_kernels if name == "kernels" else ()) for name, made in BACKENDS.items()
    ]
)
def backend(request: pytest.FixtureRequest) -> BackendFor:
    made: BackendFor = request.param
    return made


@pytest.mark.parametrize(("starts", "lengths"), MIXES.values(), ids=MIXES.keys())
@pytest.mark.parametrize("heads", [(2, 2), (6, 2), (4, 1)], ids=["no groups", "groups of 3", "one kv head"])
def test_attention_over_blocks_equals_dense_attention(
    backend: BackendFor, starts: list[int], lengths: list[int], heads: tuple[int, int]
) -> None:
    case = make(starts, lengths, heads=heads[0], kv_heads=heads[1])

    torch.testing.assert_close(case.run(backend), case.truth(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("block_tokens", [1, 4, 16])
@pytest.mark.parametrize("width", [16, 64])
def test_block_size_and_head_width_change_nothing(backend: BackendFor, block_tokens: int, width: int) -> None:
    case = make([12, 0, 25], [1, 19, 3], block_tokens=block_tokens, width=width)

    torch.testing.assert_close(case.run(backend), case.truth(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["reference", "cpu"])
def test_torch_serves_heads_of_any_width(name: str) -> None:
    case = make([12, 0, 25], [1, 19, 3], width=2)

    torch.testing.assert_close(case.run(BACKENDS[name]), case.truth(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("layer", range(LAYERS))
def test_a_layer_reads_and_writes_its_own_part_of_each_block(backend: BackendFor, layer: int) -> None:
    case = make([5, 0], [1, 6], layer=layer)
    before = case.cache.regions.clone()
    out = case.run(backend, layer)

    torch.testing.assert_close(out, case.truth(), atol=1e-5, rtol=1e-5)
    assert not case.cache.regions[0].any(), "the scratch block stays zero"
    written = (case.cache.regions != before).view(len(before), LAYERS, -1, 16 * 4).any(-1)
    assert not written[:, [other for other in range(LAYERS) if other != layer]].any()
    assert int(written[:, layer].sum()) == 2 * 2 * 7, "keys and values of 7 tokens in 2 heads of 16 numbers"


@pytest.mark.parametrize(("starts", "lengths"), MIXES.values(), ids=MIXES.keys())
def test_what_stands_in_slots_past_a_rows_end_is_never_seen(
    backend: BackendFor, starts: list[int], lengths: list[int]
) -> None:
    case = make(starts, lengths, stale=math.nan)

    torch.testing.assert_close(case.run(backend), case.truth(), atol=1e-5, rtol=1e-5)


def test_a_row_that_is_not_finite_does_not_spoil_its_neighbours(backend: BackendFor) -> None:
    case = make([12, 30, 9, 3], [1, 1, 6, 1])
    sound = case.truth()
    case.query[1] = case.key[1] = case.value[1] = math.nan
    out = case.run(backend)

    assert out[1].isnan().any()
    torch.testing.assert_close(out[[0, *range(2, 9)]], sound[[0, *range(2, 9)]], atol=1e-5, rtol=1e-5)


def test_packed_rows_give_what_each_gives_alone(backend: BackendFor) -> None:
    starts, lengths = [12, 0, 25, 8], [1, 19, 1, 4]
    case = make(starts, lengths)
    together = case.run(backend)

    at = 0
    for row, length in enumerate(lengths):
        tokens = slice(at, at + length)
        alone = Case(
            case.cache,
            AttentionBatch(
                starts=[starts[row]],
                lengths=[length],
                block_tables=case.batch.block_tables[row : row + 1],
                query_starts=torch.tensor([0, length]),
                seq_lens=case.batch.seq_lens[row : row + 1],
                slots=case.batch.slots[tokens],
            ),
            case.query[tokens],
            case.key[tokens],
            case.value[tokens],
            [],
        )
        torch.testing.assert_close(alone.run(backend), together[tokens], atol=1e-6, rtol=1e-6)
        at += length


def test_groups_keep_padding_within_the_budget_and_hold_each_row_once() -> None:
    seq_lens = [5, 900, 40, 7, 880, 33, 4, 500]
    groups = group_by_length(range(8), seq_lens, 100)

    assert sorted(row for group in groups for row in group) == list(range(8))
    for group in groups:
        longest = max(seq_lens[row] for row in group)
        assert sum(longest - seq_lens[row] for row in group) <= 100
    assert groups == [[1, 4], [7], [2, 5, 3, 0], [6]]


def test_groups_stay_below_the_size_that_is_gathered_at_once() -> None:
    groups = group_by_length(range(10), [50] * 10, 1000, group_tokens=170)

    assert [len(group) for group in groups] == [3, 3, 3, 1]


def test_rows_that_fit_one_group_keep_their_order() -> None:
    assert group_by_length([3, 1, 2], [0, 10, 12, 11], 100) == [[3, 1, 2]]
    assert group_by_length([], [], 100) == []


def test_copied_blocks_equal_their_sources_in_every_layer_even_when_source_and_target_overlap() -> None:
    cache = KVCache(
        blocks=4,
        layout=one_group(layers=2, kv_heads=2, block_tokens=4, head_dim=8, formats=KVFormats.of("bf16", value="int8")),
        dtype=torch.bfloat16,
        device=torch.device("cpu"),
    )
    cache.regions.random_(256)
    before = cache.regions.clone()
    cache.copy_blocks(torch.tensor([1, 2]), torch.tensor([2, 4]))

    assert torch.equal(cache.regions[[2, 4]], before[[1, 2]])
    assert torch.equal(cache.regions[[0, 1, 3]], before[[0, 1, 3]])


def test_the_pool_takes_as_many_bytes_as_it_says_and_begins_at_zero() -> None:
    cache = KVCache(
        blocks=7,
        layout=one_group(layers=2, kv_heads=3, block_tokens=16, head_dim=8),
        dtype=torch.float32,
        device=torch.device("cpu"),
    )

    assert cache.bytes == 8 * 2 * 2 * 3 * 16 * 8 * 4
    assert not cache.regions.any()
