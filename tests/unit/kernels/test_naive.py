"""The truth itself, against torch's own attention and by hand."""

import pytest
import torch
import torch.nn.functional as F

from kvik_kernels.kv_write.naive import naive_kv_write
from kvik_kernels.paged_attention.naive import naive_paged_attention
from kvik_kernels.testing import Row, assert_close, nan_filled_outputs, paged_case


@pytest.mark.parametrize("block_tokens", [8, 16, 32])
@pytest.mark.parametrize(("q_heads", "kv_heads"), [(2, 2), (9, 3), (16, 2)])
def test_naive_attention_equals_torch_attention_on_dense_sequences(
    q_heads: int, kv_heads: int, block_tokens: int
) -> None:
    rows = [Row(37, 37), Row(50, 1), Row(61, 13), Row(1, 1), Row(33, 5)]
    case = paged_case(rows, q_heads=q_heads, kv_heads=kv_heads, head_dim=64, block_tokens=block_tokens)
    got = naive_paged_attention(*case.attention_arguments, scale=case.scale)
    key_start = query_start = 0
    for row in rows:
        q = case.q[query_start : query_start + row.queries].transpose(0, 1)
        k = case.k[key_start : key_start + row.seq_len].transpose(0, 1)
        v = case.v[key_start : key_start + row.seq_len].transpose(0, 1)
        visible = torch.ones(row.queries, row.seq_len).tril(row.seq_len - row.queries).bool()
        want = F.scaled_dot_product_attention(q[None], k[None], v[None], attn_mask=visible, enable_gqa=True)[0]
        assert_close("out", got[query_start : query_start + row.queries], want.transpose(0, 1), atol=1e-5, rtol=1e-5)
        key_start += row.seq_len
        query_start += row.queries


def test_naive_attention_of_a_row_that_sees_nothing_is_zero() -> None:
    case = paged_case([Row(0, 1), Row(5, 2)], q_heads=2, kv_heads=1, head_dim=8)
    out = naive_paged_attention(*case.attention_arguments, scale=1.0)
    assert torch.equal(out[0], torch.zeros(2, 8))
    assert not out.isnan().any()


def test_naive_write_puts_each_token_into_its_slot_only() -> None:
    k_cache, v_cache = torch.zeros(2, 4, 3, 8, 5)
    k, v = torch.randn(2, 2, 3, 5)
    naive_kv_write(k, v, k_cache, v_cache, torch.tensor([9, 31]))
    assert torch.equal(k_cache[1, :, 1], k[0])
    assert torch.equal(v_cache[3, :, 7], v[1])
    assert int((k_cache != 0).any(-1).sum()) == 2 * 3


def test_assert_close_sees_nan_and_names_the_element() -> None:
    got = torch.zeros(2, 3)
    got[1, 2] = float("nan")
    with pytest.raises(AssertionError, match=r"^out: 1 of 6 elements differ; worst at \[1, 2\]: nan, want 0.0"):
        assert_close("out", got, torch.zeros(2, 3), atol=1.0, rtol=0.0)


def test_unwritten_outputs_are_nan() -> None:
    with nan_filled_outputs():
        assert torch.empty(3).isnan().all()
        assert torch.empty_like(torch.zeros(2, dtype=torch.float16)).isnan().all()
        assert torch.empty(2, dtype=torch.int32).dtype == torch.int32
