"""kv_write in Triton's interpreter against its plain torch truth."""

import itertools

import torch

from kvik_kernels import kv_write
from kvik_kernels.kv_write.naive import naive_kv_write


def cache(kv_heads: int, block_tokens: int, head_dim: int, dtype: torch.dtype) -> torch.Tensor:
    """An engine-like buffer [blocks, layers, 2, kv_heads, block_tokens, head_dim] full of NaN."""
    return torch.full((5, 3, 2, kv_heads, block_tokens, head_dim), float("nan"), dtype=dtype)


def test_slots_are_written_and_nothing_else() -> None:
    for (kv_heads, head_dim), block_tokens, dtype in itertools.product(
        [(3, 64), (1, 128), (5, 80), (2, 1)], (8, 16, 32), (torch.float32, torch.float16, torch.bfloat16)
    ):
        got = cache(kv_heads, block_tokens, head_dim, dtype)
        want = got.clone()
        k, v = torch.randn(2, 7, kv_heads, head_dim).to(dtype)
        slots = torch.randperm(4 * block_tokens)[:7] + block_tokens
        kv_write(k, v, got[:, 1, 0], got[:, 1, 1], slots)
        naive_kv_write(k, v, want[:, 1, 0], want[:, 1, 1], slots)
        assert torch.equal(got.isnan(), want.isnan())
        assert torch.equal(got.nan_to_num(), want.nan_to_num())


def test_k_and_v_may_be_slices_of_one_projection() -> None:
    qkv = torch.randn(4, 8, 64)
    got = cache(2, 16, 64, torch.float32)
    slots = torch.tensor([16, 79, 33, 17])
    kv_write(qkv[:, 4:6], qkv[:, 6:8], got[:, 2, 0], got[:, 2, 1], slots)
    for token, slot in enumerate(slots.tolist()):
        assert torch.equal(got[slot // 16, 2, 0, :, slot % 16], qkv[token, 4:6])
        assert torch.equal(got[slot // 16, 2, 1, :, slot % 16], qkv[token, 6:8])


def test_padded_tokens_land_in_the_scratch_block() -> None:
    got = cache(2, 16, 64, torch.float32)
    k, v = torch.randn(2, 4, 2, 64)
    kv_write(k, v, got[:, 0, 0], got[:, 0, 1], torch.tensor([40, 0, 0, 0]))
    assert not got[2, 0, :, :, 8].isnan().any()
    assert got[1:].isnan().sum() == got[1:].numel() - 2 * 2 * 64
    assert any(torch.equal(got[0, 0, 0, :, 0], k[token]) for token in (1, 2, 3))


def test_no_tokens_write_nothing() -> None:
    got = cache(2, 16, 64, torch.float32)
    kv_write(
        torch.empty(0, 2, 64), torch.empty(0, 2, 64), got[:, 0, 0], got[:, 0, 1], torch.empty(0, dtype=torch.int64)
    )
    assert got.isnan().all()
