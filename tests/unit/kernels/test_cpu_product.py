"""The CPU kernel's products against exact ones."""

import math

import pytest
import torch
from torch import Tensor

from kvik_kernels.cpu.library import InstructionSet, load_library
from kvik_kernels.cpu.product import ONE_THREAD_ELEMENTS, PanelWeight, in_panels
from tests.support.cpu_kernels import SETS

pytestmark = pytest.mark.skipif(InstructionSet.AVX512_BF16 not in SETS, reason="no products of bfloat16 on this CPU")

ROWS = (0, 1, 2, 5, 6, 7, 11, 12, 13, 16, 25, 47, 48, 49, 97)
OUTPUTS = (1, 15, 16, 17, 31, 32, 33, 63, 160)


def draw(rows: int, columns: int, seed: int = 0) -> Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed)).bfloat16()


def multiply(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, dtype: torch.dtype = torch.float32, threads: int = 1
) -> Tensor:
    return PanelWeight(load_library(), weight).multiply(x, bias, dtype=dtype, threads=threads)


def require_exact(got: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> None:
    """Sums of fp32 differ from exact ones by a few of its steps, whatever their order."""
    want = x.double() @ weight.double().t() + (0 if bias is None else bias.double())
    largest = x.double().abs() @ weight.double().abs().t()
    assert ((got.double() - want).abs() <= 1e-5 * largest + 1e-30).all()


@pytest.mark.parametrize("outputs", OUTPUTS)
def test_a_product_of_any_number_of_rows_and_outputs_is_exact_to_fp32(outputs: int) -> None:
    weight, bias = draw(outputs, 66, seed=1), draw(1, outputs, seed=2)[0]
    for rows in ROWS:
        x = draw(rows, 66)
        got = multiply(x, weight, bias)
        assert (got.shape, got.dtype) == ((rows, outputs), torch.float32)
        require_exact(got, x, weight, bias)


@pytest.mark.parametrize("inputs", [2, 4, 4094, 4096, 4098, 8194])
@pytest.mark.parametrize("rows", [1, 13, 49])
def test_sums_go_on_where_a_panel_is_longer_than_a_chunk(rows: int, inputs: int) -> None:
    x, weight, bias = draw(rows, inputs), draw(40, inputs, seed=1), draw(1, 40, seed=2)[0]
    require_exact(multiply(x, weight, bias), x, weight, bias)


@pytest.mark.parametrize("rows", [1, 7, 50])
def test_bfloat16_results_are_the_sums_rounded_once(rows: int) -> None:
    x, weight, bias = draw(rows, 96), draw(70, 96, seed=1), draw(1, 70, seed=2)[0]
    assert torch.equal(multiply(x, weight, bias, torch.bfloat16), multiply(x, weight, bias).bfloat16())


def test_a_rows_result_depends_on_no_other_row_and_no_number_of_threads() -> None:
    weight, x = draw(100, 4100, seed=1), draw(97, 4100)
    together = multiply(x, weight, threads=3)
    assert x.shape[1] * 100 > ONE_THREAD_ELEMENTS, "more than one thread works"
    for row in (0, 11, 12, 48, 96):
        poisoned = torch.full_like(x, math.nan)
        poisoned[row] = x[row]
        assert torch.equal(multiply(poisoned, weight)[row], together[row])
        assert torch.equal(multiply(x[row : row + 1], weight)[0], together[row])


def test_rows_may_lie_apart_and_nothing_beside_them_is_read() -> None:
    wide, weight = torch.full((9, 200), math.nan).bfloat16(), draw(33, 64, seed=1)
    x = wide[:, 70:134]
    x.copy_(draw(9, 64))
    require_exact(multiply(x, weight), x, weight)


def test_what_is_not_a_number_stays_in_its_row_and_output() -> None:
    x, weight = draw(3, 8), draw(40, 8, seed=1)
    x[1, 5], weight[33, 2] = math.inf, math.nan
    got = multiply(x, weight, dtype=torch.bfloat16)
    assert got[:, 33].isnan().all()
    assert not got[1].isfinite().any()
    assert got[[0, 2]][:, :33].isfinite().all()


def test_panels_hold_outputs_side_by_side_and_zeros_past_the_last() -> None:
    weight = torch.arange(1, 34 * 4 + 1).view(34, 4).bfloat16()
    panels = in_panels(weight)
    assert panels.shape == (2, 2, 32, 2)
    assert torch.equal(panels[1, 1, 1], weight[33, 2:])
    assert not panels[1, :, 2:].any()


def test_arguments_that_do_not_fit_are_named() -> None:
    library, weight = load_library(), draw(8, 6)
    for bad, error in ((weight.float(), TypeError), (weight[0], ValueError), (weight[:, :5], ValueError)):
        with pytest.raises(error, match="weight"):
            PanelWeight(library, bad)
    panels = PanelWeight(library, weight)
    for x, error in ((draw(2, 4), ValueError), (draw(2, 6).float(), TypeError), (draw(6, 2).t(), ValueError)):
        with pytest.raises(error, match="x"):
            panels.multiply(x, dtype=torch.bfloat16, threads=1)
    with pytest.raises(TypeError, match="dtype"):
        panels.multiply(draw(2, 6), dtype=torch.float16, threads=1)
    with pytest.raises(ValueError, match="bias"):
        panels.multiply(draw(2, 6), draw(1, 6)[0], dtype=torch.bfloat16, threads=1)
