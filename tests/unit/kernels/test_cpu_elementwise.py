"""The CPU kernels' norm, rotation and gate against torch's, for every instruction set of the machine."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from kvik_kernels.activation import Activation
from kvik_kernels.cpu.elementwise import ONE_THREAD_ELEMENTS, Elementwise, serves
from kvik_kernels.cpu.library import InstructionSet, load_library
from tests.support.cpu_kernels import SETS, needs_kernels

pytestmark = needs_kernels

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
each_set = pytest.mark.parametrize("isa", SETS, ids=lambda isa: isa.name)
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)
ACTIVATED = {Activation.SILU: F.silu, Activation.GELU_TANH: lambda x: F.gelu(x, approximate="tanh")}


def kernels(isa: InstructionSet, threads: int = 1) -> Elementwise:
    return Elementwise(load_library(), threads=threads, instruction_set=isa)


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def require_close(got: Tensor, want: Tensor, dtype: torch.dtype) -> None:
    """`want` in fp32 or wider: equal to a few steps of fp32, or to one of the dtype that it was rounded to."""
    assert got.dtype == dtype
    step = max(torch.finfo(dtype).eps, 1e-6)
    torch.testing.assert_close(got.double(), want.double(), rtol=step, atol=step)


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


@each_set
@each_dtype
@pytest.mark.parametrize(("rows", "width"), [(0, 16), (1, 16), (3, 576), (9, 48), (130, 576)])
def test_the_norm_is_torchs(isa: InstructionSet, dtype: torch.dtype, rows: int, width: int) -> None:
    x, weight = draw(rows, width) * 7, draw(width, seed=1)
    got = kernels(isa, threads=2).rms_norm(x, weight, 1e-5, dtype)
    require_close(got, F.rms_norm(x, (width,), weight, 1e-5), dtype)


@each_set
@each_dtype
@pytest.mark.parametrize(("rows", "width"), [(0, 16), (1, 16), (3, 576), (130, 576)])
def test_what_is_added_before_the_norm_stays_added(
    isa: InstructionSet, dtype: torch.dtype, rows: int, width: int
) -> None:
    x, addend, weight = draw(rows, width) * 7, draw(rows, width, seed=2).to(dtype), draw(width, seed=1)
    want = x + addend
    got = kernels(isa, threads=2).rms_norm(x, weight, 1e-5, dtype, addend=addend)
    assert torch.equal(x, want)
    assert torch.equal(got, kernels(isa).rms_norm(want, weight, 1e-5, dtype))


@each_set
def test_the_norm_of_zeros_is_zero_and_of_nan_is_nan_in_its_row_alone(isa: InstructionSet) -> None:
    x = torch.zeros(3, 32)
    x[1, 5] = math.nan
    got = kernels(isa).rms_norm(x, torch.ones(32), 1e-6, torch.bfloat16)
    assert not got[[0, 2]].any()
    assert got[1].isnan().all()


@each_set
@each_dtype
@pytest.mark.parametrize(("tokens", "heads", "width"), [(0, 2, 32), (1, 12, 64), (5, 3, 96), (50, 12, 64)])
def test_heads_are_turned_where_they_lie_and_nothing_beside_them(
    isa: InstructionSet, dtype: torch.dtype, tokens: int, heads: int, width: int
) -> None:
    # As the engine has them: the queries and keys of one product's result, values behind them.
    states = draw(tokens, heads + 2, width).to(dtype)
    angles = draw(tokens, 1, width // 2, seed=1)
    cos, sin = angles.cos(), angles.sin()
    want, beside = turned(states[:, :heads], cos, sin), states[:, heads:].clone()
    got = kernels(isa, threads=2).rotate(states[:, :heads], cos, sin)
    assert got.data_ptr() == states.data_ptr()
    require_close(got, want, dtype)
    assert torch.equal(states[:, heads:], beside)


@each_set
@each_dtype
@pytest.mark.parametrize("activation", Activation, ids=lambda each: each.name)
@pytest.mark.parametrize(("rows", "width"), [(0, 16), (1, 16), (3, 1536), (40, 1040)])
def test_the_gate_is_torchs(
    isa: InstructionSet, dtype: torch.dtype, activation: Activation, rows: int, width: int
) -> None:
    gate_up = (draw(rows, 2 * width) * 6).to(dtype)
    gate, up = gate_up.chunk(2, dim=-1)
    # The activated gate is rounded once, as torch rounds it, and the product once more.
    rounded = ACTIVATED[activation](gate.float()).to(dtype)
    got = kernels(isa, threads=2).gate(gate_up, activation)
    step = torch.finfo(dtype).eps
    torch.testing.assert_close(got.float(), rounded.float() * up.float(), rtol=2.1 * step, atol=1e-4)


@each_set
@pytest.mark.parametrize("activation", Activation, ids=lambda each: each.name)
def test_a_gate_may_be_as_large_as_it_likes(isa: InstructionSet, activation: Activation) -> None:
    odd = torch.tensor([0.0, -0.0, 88.0, -88.0, 1e4, -1e4, 3e12, -3e12, 1e-30, -1e-30, math.nan, math.inf] + [1.0] * 4)
    got = kernels(isa).gate(torch.cat((odd, torch.ones(16)))[None], activation)[0]
    want = ACTIVATED[activation](odd)
    assert got.isnan().equal(want.isnan())
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-7, equal_nan=True)


@each_set
def test_threads_and_neighbours_change_no_bit(isa: InstructionSet) -> None:
    x, weight = draw(100, 1024), draw(1024, seed=1)
    assert x.numel() > ONE_THREAD_ELEMENTS, "more than one thread works"
    alone, together = kernels(isa), kernels(isa, threads=3)
    assert torch.equal(
        together.rms_norm(x, weight, 1e-5, torch.float32)[7], alone.rms_norm(x[7:8], weight, 1e-5, torch.float32)[0]
    )
    assert torch.equal(together.gate(x, Activation.SILU)[7], alone.gate(x[7:8], Activation.SILU)[0])
    heads, angles = draw(100, 8, 64), draw(100, 1, 32, seed=1)
    want = alone.rotate(heads[7:8].clone(), angles[7:8].cos(), angles[7:8].sin())[0]
    poisoned = torch.full_like(heads, math.nan)
    poisoned[7] = heads[7]
    assert torch.equal(together.rotate(poisoned, angles.cos(), angles.sin())[7], want)


def test_arguments_that_do_not_fit_are_named() -> None:
    own = kernels(SETS[-1])
    for x, weight, error in (
        (draw(2, 17), draw(17), ValueError),
        (draw(2, 16).bfloat16(), draw(16), TypeError),
        (draw(2, 32)[:, :16], draw(16), ValueError),
        (draw(16), draw(16), ValueError),
    ):
        with pytest.raises(error, match="x:"):
            own.rms_norm(x, weight, 1e-5, torch.float32)
    with pytest.raises(ValueError, match="weight"):
        own.rms_norm(draw(2, 16), draw(32), 1e-5, torch.float32)
    for addend, error in (
        (draw(2, 16).bfloat16(), TypeError),
        (draw(3, 16), ValueError),
        (draw(2, 32)[:, :16], ValueError),
    ):
        with pytest.raises(error, match="addend"):
            own.rms_norm(draw(2, 16), draw(16), 1e-5, torch.float32, addend=addend)
    for heads in (draw(2, 3, 40), draw(2, 3, 33)):
        with pytest.raises(ValueError, match="x: heads"):
            own.rotate(heads, draw(2, 1, heads.shape[-1] // 2), draw(2, 1, heads.shape[-1] // 2))
    with pytest.raises(ValueError, match="cos"):
        own.rotate(draw(2, 3, 32), draw(1, 1, 16), draw(2, 1, 16))
    with pytest.raises(TypeError, match="dtype"):
        own.rms_norm(draw(2, 16), draw(16), 1e-5, torch.float64)
    with pytest.raises(TypeError, match="dtype"):
        own.gate(draw(2, 32).double(), Activation.SILU)
    for gate_up in (draw(2, 24), draw(2, 33), draw(2, 64)[:, :32]):
        with pytest.raises(ValueError, match="gate_up"):
            own.gate(gate_up, Activation.SILU)


def test_whole_registers_of_known_dtypes_are_served() -> None:
    assert serves(576, torch.bfloat16)
    assert not serves(40, torch.bfloat16)
    assert not serves(0, torch.bfloat16)
    assert not serves(64, torch.int8)
