"""The CPU kernels' KV write against torch's."""

import math

import pytest
import torch

from kvik_kernels.cpu.library import load_library
from kvik_kernels.cpu.write import PagedWrites
from tests.support.cpu_kernels import needs_kernels

pytestmark = needs_kernels
DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def write(key: torch.Tensor, value: torch.Tensor, layer: torch.Tensor, slots: torch.Tensor) -> None:
    """layer: [blocks, keys and values, heads, block_tokens, width]."""
    blocks, _, heads, block_tokens, width = layer.shape
    writes = PagedWrites(
        load_library(), slots, kv_heads=heads, width=width, blocks=blocks, block_tokens=block_tokens, dtype=layer.dtype
    )
    writes.write(key, value, layer[:, 0], layer[:, 1])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("heads", "width", "block_tokens"), [(1, 64, 16), (3, 80, 16), (2, 1, 1), (5, 100, 32)])
def test_new_tokens_go_to_their_slots_and_nothing_else_changes(
    dtype: torch.dtype, heads: int, width: int, block_tokens: int
) -> None:
    draw = torch.Generator().manual_seed(0)
    buffer = torch.full((7, 2, 2, heads, block_tokens, width), math.nan, dtype=dtype)
    slots = torch.randperm(7 * block_tokens, generator=draw)[:5]
    # As the engine has them: parts of one product's result.
    states = torch.randn(5, 3 * heads, width, generator=draw).to(dtype)
    key, value = states[:, heads : 2 * heads], states[:, 2 * heads :]
    want = buffer.clone()
    for token, slot in enumerate(slots.tolist()):
        block, offset = divmod(slot, block_tokens)
        want[block, 1, 0, :, offset] = key[token]
        want[block, 1, 1, :, offset] = value[token]
    write(key, value, buffer[:, 1], slots)

    assert torch.equal(buffer.view(torch.uint8), want.view(torch.uint8))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_values_are_made_finite_as_torch_does_and_keys_are_not(dtype: torch.dtype) -> None:
    largest, smallest = torch.finfo(dtype).max, torch.finfo(dtype).smallest_normal
    odd = torch.tensor(
        [math.nan, -math.nan, math.inf, -math.inf, largest, -largest, smallest, -0.0, smallest / 4, 0.0, 1.5]
    ).to(dtype)
    layer = torch.zeros(2, 2, 1, 1, len(odd), dtype=dtype)
    write(odd[None, None], odd[None, None], layer, torch.tensor([1]))

    assert torch.equal(layer[1, 1, 0, 0].view(torch.uint8), odd.nan_to_num().view(torch.uint8))
    assert torch.equal(layer[1, 0, 0, 0].view(torch.uint8), odd.view(torch.uint8))


def test_arguments_that_do_not_fit_are_named() -> None:
    layer = torch.zeros(2, 2, 1, 4, 8)
    new = torch.zeros(1, 1, 8)

    with pytest.raises(TypeError, match="slots"):
        write(new, new, layer, torch.tensor([1], dtype=torch.int32))
    with pytest.raises(ValueError, match="key"):
        write(new[..., :4], new, layer, torch.tensor([1]))
    with pytest.raises(ValueError, match="key"):
        write(new, new, layer, torch.tensor([1, 2]))
    with pytest.raises(TypeError, match="value"):
        write(new, new.half(), layer, torch.tensor([1]))
    with pytest.raises(ValueError, match="last dimension"):
        write(torch.zeros(1, 8, 2).transpose(1, 2)[:, :1], new, layer, torch.tensor([1]))
    with pytest.raises(TypeError, match="dtype"):
        write(new, new, layer.double(), torch.tensor([1]))


@pytest.mark.parametrize("slot", [-1, 8, 1 << 62])
def test_a_slot_outside_the_cache_is_refused_before_anything_is_written(slot: int) -> None:
    """torch's index_copy_ raises IndexError; a kernel would write into whatever lies there."""
    layer = torch.zeros(2, 2, 1, 4, 8)
    new = torch.ones(3, 1, 8)

    with pytest.raises(ValueError, match=f"slots: {slot} is none of 2 blocks of 4 tokens"):
        write(new, new, layer, torch.tensor([0, 7, slot]))
    assert not layer.any()


def test_a_layer_with_fewer_blocks_than_were_told_is_refused() -> None:
    layer = torch.zeros(2, 2, 1, 4, 8)
    new = torch.ones(1, 1, 8)
    writes = PagedWrites(
        load_library(), torch.tensor([7]), kv_heads=1, width=8, blocks=2, block_tokens=4, dtype=torch.float32
    )

    with pytest.raises(ValueError, match="values"):
        writes.write(new, new, layer[:, 0], layer[:1, 1])
