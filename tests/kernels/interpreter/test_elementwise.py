"""rms_norm, rotary and swiglu in Triton's interpreter against their plain torch truth."""

import mmap

import pytest
import torch

from kvik_kernels import rms_norm, rotary, swiglu
from kvik_kernels.activation import Activation
from kvik_kernels.rms_norm.naive import naive_rms_norm
from kvik_kernels.rotary.naive import naive_rotary
from kvik_kernels.swiglu.naive import naive_swiglu
from kvik_kernels.testing import assert_close, tolerance

LINUX_MAP_NORESERVE = 0x4000  # in the mmap module from Python 3.13 on

each_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
each_activation = pytest.mark.parametrize("activation", Activation, ids=lambda each: each.name)


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@each_dtype
@pytest.mark.parametrize("added", [None, torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize(("rows", "width"), [(0, 64), (1, 1), (1, 576), (7, 63), (130, 80)])
def test_rows_are_normed(rows: int, width: int, added: torch.dtype | None, dtype: torch.dtype) -> None:
    x, weight = draw(rows, width) * 7, draw(width, seed=1)
    addend = None if added is None else draw(rows, width, seed=2).to(added)
    want_sum = x.clone()
    want = naive_rms_norm(want_sum, weight, 1e-5, dtype, addend=addend)
    got = rms_norm(x, weight, 1e-5, dtype, addend=addend)
    assert got.dtype is dtype
    assert_close("normed", got, want, **tolerance(dtype))
    assert torch.equal(x, want_sum)


def test_rows_may_lie_apart_and_what_lies_between_stays() -> None:
    memory, addends = draw(5, 48), draw(5, 80, seed=2)
    before = memory.clone()
    x, addend, weight = memory[:, 8:40], addends[:, 16:48], draw(32, seed=1)
    want = naive_rms_norm(before[:, 8:40].clone(), weight, 1e-5, torch.float32, addend=addend)
    assert_close("normed", rms_norm(x, weight, 1e-5, torch.float32, addend=addend), want, **tolerance(torch.float32))
    assert torch.equal(x, before[:, 8:40] + addend)
    assert torch.equal(memory[:, :8], before[:, :8])
    assert torch.equal(memory[:, 40:], before[:, 40:])


def test_zeros_are_normed_to_zeros_and_nan_stays_in_its_row() -> None:
    x = torch.zeros(3, 24)
    x[1, 5] = float("nan")
    got = rms_norm(x, draw(24), 1e-5, torch.float32)
    assert got[1].isnan().all()
    assert torch.equal(got[0::2], torch.zeros(2, 24))


@each_dtype
@pytest.mark.parametrize(
    ("tokens", "heads", "head_dim"), [(0, 2, 64), (1, 1, 2), (3, 12, 64), (2, 40, 128), (70, 5, 80), (1, 3, 6)]
)
def test_heads_are_turned_in_place_and_their_neighbours_stay(
    tokens: int, heads: int, head_dim: int, dtype: torch.dtype
) -> None:
    projected = draw(tokens, heads + 2, head_dim).to(dtype)
    angles = draw(tokens, 1, head_dim // 2, seed=1)
    want = projected.clone()
    naive_rotary(want[:, 1:-1], angles.cos(), angles.sin())
    rotary(projected[:, 1:-1], angles.cos(), angles.sin())
    assert_close("turned", projected, want, **tolerance(dtype))
    assert torch.equal(projected[:, 0 :: heads + 1], want[:, 0 :: heads + 1])


def test_part_of_each_head_may_be_turned() -> None:
    heads, angles = draw(4, 3, 48), draw(4, 1, 8, seed=1)
    want = heads.clone()
    naive_rotary(want[..., 32:], angles.cos(), angles.sin())
    rotary(heads[..., 32:], angles.cos(), angles.sin())
    assert_close("turned", heads, want, **tolerance(torch.float32))


@each_dtype
@each_activation
@pytest.mark.parametrize(("rows", "width"), [(0, 8), (1, 1), (1, 1536), (7, 63), (130, 80)])
def test_rows_are_gated(rows: int, width: int, activation: Activation, dtype: torch.dtype) -> None:
    gate_up = (draw(rows, 2 * width) * 3).to(dtype)
    got = swiglu(gate_up, activation)
    assert got.dtype is dtype
    assert_close("gated", got, naive_swiglu(gate_up, activation), **tolerance(dtype))


@each_activation
def test_gates_may_lie_apart_and_be_large(activation: Activation) -> None:
    memory = draw(5, 100)
    memory[2, 10:30] = torch.linspace(-60, 60, 20)
    gate_up = memory[:, 10:90]
    assert_close("gated", swiglu(gate_up, activation), naive_swiglu(gate_up, activation), **tolerance(torch.float32))


def far_apart(rows: torch.Tensor) -> torch.Tensor:
    """The same rows 2**30 elements apart, few pages of them touched; a 32-bit offset would wrap to the zeros before."""
    stride, before = 2**30, 2**31
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | LINUX_MAP_NORESERVE
    memory = mmap.mmap(-1, rows.element_size() * (before + len(rows) * stride), flags=flags)
    far = torch.frombuffer(memory, dtype=rows.dtype).as_strided(rows.shape, (stride, *rows.stride()[1:]), before)
    return far.copy_(rows)


def test_rows_may_lie_further_apart_than_32_bits_count(monkeypatch: pytest.MonkeyPatch) -> None:
    # After a launch the interpreter copies each storage back, here onto itself, which would touch every page.
    monkeypatch.setattr("triton.runtime.interpreter.GridExecutor._restore_args_dev", lambda *_: None)
    x, addend, weight = draw(3, 64), draw(3, 64, seed=2).half(), draw(64, seed=1)
    got = rms_norm(far_apart(x), weight, 1e-5, torch.float32, addend=far_apart(addend))
    assert torch.equal(got, rms_norm(x, weight, 1e-5, torch.float32, addend=addend))

    gate_up = draw(3, 128).half()
    assert torch.equal(swiglu(far_apart(gate_up), Activation.SILU), swiglu(gate_up, Activation.SILU))

    heads, angles = draw(3, 2, 32).half(), draw(3, 1, 16, seed=1)
    far_heads = far_apart(heads)
    for each in (heads, far_heads):
        rotary(each, angles.cos(), angles.sin())
    assert torch.equal(far_heads, heads)
