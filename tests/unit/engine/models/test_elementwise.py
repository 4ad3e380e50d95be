"""What layers do between products: the CPU kernels give what torch gives, and leave to it what they do not know."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kvik_engine.attention.backend import AttentionBatch, StepAttention
from kvik_engine.attention.kv_cache import KVCache
from kvik_engine.attention.kv_layout import KVFormats
from kvik_engine.attention.reference import ReferenceBackend
from kvik_engine.layers.elementwise import CpuElementwise, Elementwise, TorchElementwise
from kvik_engine.layers.norm import RMSNorm
from kvik_engine.layers.residual import Residual
from kvik_engine.models.config import ModelConfig
from kvik_engine.models.kv_groups import kv_layout
from kvik_engine.models.random_weights import RandomTensors
from kvik_engine.models.registry import build
from kvik_kernels.activation import Activation
from kvik_kernels.cpu.library import load_library
from tests.support.cpu_kernels import needs_kernels
from tests.support.tiny_model import TINY

pytestmark = needs_kernels
CPU = torch.device("cpu")
TOKENS = 5


def logits(config: ModelConfig, elementwise: Elementwise) -> Tensor:
    """Of one prompt, computed in one step."""
    model = build(config, RandomTensors(0, dtype=torch.float32, device=CPU, elementwise=elementwise))
    batch = AttentionBatch(
        starts=[0],
        lengths=[TOKENS],
        block_tables=torch.tensor([[1]], dtype=torch.int32),
        query_starts=torch.tensor([0, TOKENS]),
        seq_lens=torch.tensor([TOKENS]),
        slots=torch.arange(16, 16 + TOKENS),
    )
    cache = KVCache(blocks=1, layout=kv_layout(config, 16, KVFormats.of("fp32")), dtype=torch.float32, device=CPU)
    positions = torch.arange(TOKENS)
    return model.logits(model.forward(positions, positions, StepAttention(ReferenceBackend(), [batch], cache)))


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(replace(TINY, hidden_size=64, intermediate_size=96, head_dim=32), id="all are known"),
        pytest.param(replace(TINY, hidden_size=64, intermediate_size=96, head_dim=24), id="but heads"),
        pytest.param(replace(TINY, hidden_size=40, intermediate_size=72, head_dim=8), id="none is"),
    ],
)
def test_a_model_gives_the_same_logits_by_kernels_as_by_torch(config: ModelConfig) -> None:
    want = logits(config, TorchElementwise())
    torch.testing.assert_close(logits(config, CpuElementwise(load_library())), want, atol=1e-4, rtol=1e-4)


def test_rows_may_have_more_dimensions_and_lie_apart() -> None:
    x, weight = torch.randn(3, 5, 64, generator=torch.Generator().manual_seed(0)), torch.ones(32)
    heads = x[:, 1:4, 16:48]
    want = TorchElementwise().rms_norm(heads, weight, 1e-5, torch.float32)
    got = CpuElementwise(load_library()).rms_norm(heads, weight, 1e-5, torch.float32)
    assert got.shape == heads.shape
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize("addend_dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("width", [24, 48])
def test_a_sum_is_added_to_in_place_before_its_norm(addend_dtype: torch.dtype, width: int) -> None:
    draw = torch.Generator().manual_seed(0)
    x, weight = torch.randn(3, width, generator=draw), torch.rand(width, generator=draw)
    addend = torch.randn(3, width, generator=draw).to(addend_dtype)
    sums = [x.clone(), x.clone()]
    ways: tuple[Elementwise, Elementwise] = (TorchElementwise(), CpuElementwise(load_library()))
    want, got = (
        way.add_rms_norm(one, addend, weight, 1e-5, torch.bfloat16) for way, one in zip(ways, sums, strict=True)
    )
    torch.testing.assert_close(got, want)
    assert torch.equal(sums[0], x + addend)
    assert torch.equal(sums[1], x + addend)


def test_a_residual_is_all_that_was_added_whichever_norm_reads_it() -> None:
    draw = torch.Generator().manual_seed(0)
    hidden, first, second = (torch.randn(3, 16, generator=draw) for _ in range(3))
    norm = RMSNorm(torch.rand(16, generator=draw), 1e-5, torch.float32)
    residual = Residual(hidden.clone())
    torch.testing.assert_close(residual.normed(norm), norm(hidden))
    residual.add(first)
    torch.testing.assert_close(residual.normed(norm), norm(hidden + first))
    torch.testing.assert_close(residual.normed(norm), norm(hidden + first))
    residual.add(second)
    torch.testing.assert_close(residual.normed(norm), norm(hidden + first + second))


@pytest.mark.parametrize("activation", Activation, ids=lambda each: each.name)
@pytest.mark.parametrize("width", [24, 48])
def test_gates_of_any_width_are_torchs(activation: Activation, width: int) -> None:
    gate_up = torch.randn(3, 2 * width, generator=torch.Generator().manual_seed(0))
    want = TorchElementwise().gate(gate_up.clone(), activation)
    torch.testing.assert_close(CpuElementwise(load_library()).gate(gate_up, activation), want)
