"""The CPU kernel's products with weights of int8, against exact ones with the weights as they are rounded."""

import math

import pytest
import torch
from torch import Tensor

from kvik_kernels.cpu.int8_product import MOST_INPUTS, Int8Weight, rounded
from kvik_kernels.cpu.library import LibraryUnavailable, load_library
from kvik_kernels.cpu.product import ONE_THREAD_ELEMENTS


def multiplies_bytes() -> bool:
    try:
        return load_library().multiplies_bytes
    except LibraryUnavailable:
        return False


pytestmark = pytest.mark.skipif(not multiplies_bytes(), reason="no products of bytes on this CPU")
each_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
ROWS = (0, 1, 2, 5, 6, 7, 13, 47, 48, 49, 97)
OUTPUTS = (1, 15, 16, 17, 31, 32, 33, 63, 160, 1057)
INPUTS = (1, 3, 4, 15, 16, 17, 66, 576)


def draw(rows: int, columns: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed)).to(dtype)


def as_rounded(weight: Tensor) -> Tensor:
    """The weight that is multiplied by, fp64, by another way than panels."""
    scale = weight.float().abs().amax(1, keepdim=True) / 127
    return (weight.float() / scale).round().double() * scale


def multiply(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, dtype: torch.dtype = torch.float32, threads: int = 1
) -> Tensor:
    return Int8Weight(load_library(), weight).multiply(x, bias, dtype=dtype, threads=threads)


def require_exact(got: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> None:
    """But for what x is rounded to: half a 32,512th of its row's largest element, each."""
    kept = as_rounded(weight)
    want = x.double() @ kept.t() + (0 if bias is None else bias.double())
    off = x.double().abs().amax(1, keepdim=True) / 32512 / 2 * kept.abs().sum(1)
    assert ((got.double() - want).abs() <= 1.01 * off + 1e-5 * want.abs() + 1e-30).all()


@each_dtype
@pytest.mark.parametrize("outputs", OUTPUTS)
def test_a_product_of_any_number_of_rows_and_outputs_is_exact_but_for_rounded_inputs(
    outputs: int, dtype: torch.dtype
) -> None:
    weight, bias = draw(outputs, 66, 1, dtype), draw(1, outputs, 2, dtype)[0]
    product = Int8Weight(load_library(), weight)
    for rows in ROWS:
        x = draw(rows, 66, dtype=dtype)
        got = product.multiply(x, bias, dtype=torch.float32, threads=1)
        assert (got.shape, got.dtype) == ((rows, outputs), torch.float32)
        if rows:
            require_exact(got, x, weight, bias)


@each_dtype
@pytest.mark.parametrize("inputs", INPUTS)
def test_inputs_need_not_fill_vectors(inputs: int, dtype: torch.dtype) -> None:
    x, weight = draw(9, inputs, dtype=dtype), draw(40, inputs, 1, dtype)
    require_exact(multiply(x, weight), x, weight)


def test_the_most_inputs_with_the_largest_bytes_overflow_nothing() -> None:
    weight, x = torch.ones(1, MOST_INPUTS), torch.ones(2, MOST_INPUTS)
    x[1] = -1
    assert multiply(x, weight).tolist() == [[MOST_INPUTS], [-MOST_INPUTS]]
    x[:] = 255 / 32512  # the largest lower bytes
    x[:, 0] = 1
    require_exact(multiply(x, weight), x, weight)


@pytest.mark.parametrize("rows", [1, 7, 50])
def test_bfloat16_results_are_those_of_fp32_rounded_once(rows: int) -> None:
    x, weight, bias = (draw(n, 96, seed, torch.bfloat16) for seed, n in enumerate((rows, 70, 1)))
    bias = bias[0, :70].contiguous()
    assert torch.equal(multiply(x, weight, bias, torch.bfloat16), multiply(x, weight, bias).bfloat16())


def test_a_rows_result_depends_on_no_other_row_and_no_number_of_threads() -> None:
    weight, x = draw(100, 4100, 1), draw(97, 4100)
    together = multiply(x, weight, threads=3)
    assert x.shape[1] * 100 > ONE_THREAD_ELEMENTS, "more than one thread works"
    for row in (0, 5, 6, 48, 96):
        poisoned = torch.full_like(x, math.nan)
        poisoned[row] = x[row]
        assert torch.equal(multiply(poisoned, weight)[row], together[row])
        assert torch.equal(multiply(x[row : row + 1], weight)[0], together[row])


def test_rows_may_lie_apart_and_nothing_beside_them_is_read() -> None:
    wide, weight = torch.full((9, 200), math.nan), draw(33, 64, 1)
    x = wide[:, 70:134]
    x.copy_(draw(9, 64))
    require_exact(multiply(x, weight), x, weight)


def test_what_is_not_a_number_stays_in_its_row_and_output() -> None:
    x, weight = draw(4, 8), draw(40, 8, 1)
    x[1, 5], x[2, 0], weight[33, 2] = math.inf, math.nan, math.nan
    got = multiply(x, weight)
    assert got[:, 33].isnan().all()
    assert not got[1:3].isfinite().any()
    assert got[[0, 3]][:, :33].isfinite().all()


def test_rows_and_outputs_of_zeros_and_of_the_smallest_numbers_are_the_bias() -> None:
    x, weight, bias = draw(3, 8), draw(5, 8, 1), draw(1, 5, 2)[0]
    x[0], x[1], weight[3] = 0, 1e-42, 0
    got = multiply(x, weight, bias)
    torch.testing.assert_close(got[:2], bias.expand(2, 5))
    assert got[2, 3] == bias[3]


def test_panels_hold_four_inputs_of_outputs_side_by_side_and_zeros_past_the_last() -> None:
    weight = torch.zeros(34, 6)
    weight[33] = torch.tensor([127.0, -1, 2, -3, 4, 5])
    panels, scales, shifts = rounded(weight)
    assert panels.shape == (2, 2, 32, 4)
    assert panels[1, 0, 1].tolist() == [127, -1, 2, -3]
    assert panels[1, 1, 1].tolist() == [4, 5, 0, 0]
    assert (scales[33], shifts[33]) == (1.0, 128 * 134)
    assert panels.count_nonzero() == 6


def test_arguments_that_do_not_fit_are_named() -> None:
    library, weight = load_library(), draw(8, 6)
    for bad, error in ((weight.half(), TypeError), (weight[0], ValueError), (weight[:, :0], ValueError)):
        with pytest.raises(error, match="weight"):
            Int8Weight(library, bad)
    with pytest.raises(ValueError, match="weight"):
        Int8Weight(library, torch.zeros(1, MOST_INPUTS + 1))
    product = Int8Weight(library, weight)
    for x, error in ((draw(2, 4), ValueError), (draw(2, 6).bfloat16(), TypeError), (draw(6, 2).t(), ValueError)):
        with pytest.raises(error, match="x"):
            product.multiply(x, dtype=torch.float32, threads=1)
    with pytest.raises(TypeError, match="dtype"):
        product.multiply(draw(2, 6), dtype=torch.float16, threads=1)
    with pytest.raises(ValueError, match="bias"):
        product.multiply(draw(2, 6), draw(1, 6)[0], dtype=torch.float32, threads=1)
