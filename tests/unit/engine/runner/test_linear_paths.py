"""Products with packed weights, and when they are chosen."""

from __future__ import annotations

import gc
import logging
import time
import weakref
from itertools import count

import pytest
import torch
from torch import Tensor

from kvik_engine.layers.linear import Linear
from kvik_engine.layers.product import PackedProduct, PlainProduct
from kvik_engine.models.random_weights import RandomTensors
from kvik_engine.runner import linear_paths
from kvik_engine.runner.linear_paths import ROWS, MeasuredProducts, PathSeconds, choose_products, packed_pays

CPU = torch.device("cpu")
ODD_ROWS = (0, 1, 2, 7, 16, 33, 129)
# Both sum in fp32, maybe in another order, and round once: one step of bf16 apart at most, of values near one.
ONE_STEP = {"atol": 2**-7, "rtol": 2**-7}

needs_onednn = pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="oneDNN multiplies no bf16 on this CPU"
)


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def weight(rows: int = 160, columns: int = 96) -> Tensor:
    return torch.randn(rows, columns).mul_(columns**-0.5).bfloat16()


@needs_onednn
@pytest.mark.parametrize("rows", ODD_ROWS)
@pytest.mark.parametrize("biased", [False, True])
def test_a_packed_product_equals_the_plain_one(rows: int, biased: bool) -> None:
    matrix, x = weight(), torch.randn(rows, 96).bfloat16()
    bias = torch.randn(160).bfloat16() if biased else None
    got = PackedProduct(matrix)(x, bias)

    assert (got.shape, got.dtype, got.is_contiguous()) == ((rows, 160), torch.bfloat16, True)
    torch.testing.assert_close(got, PlainProduct(matrix)(x, bias), **ONE_STEP)


@needs_onednn
@pytest.mark.parametrize("rows", ODD_ROWS)
def test_strides_of_input_and_weight_change_nothing(rows: int) -> None:
    matrix = weight()
    across, within = torch.randn(96, rows).bfloat16().t(), torch.randn(rows, 300).bfloat16()[:, 100:196]
    transposed = matrix.t().contiguous().t()
    for x in (across, within):
        want = PackedProduct(matrix)(x.contiguous())
        torch.testing.assert_close(PackedProduct(matrix)(x), want, **ONE_STEP)
        torch.testing.assert_close(PackedProduct(transposed)(x), want, **ONE_STEP)


@needs_onednn
@pytest.mark.parametrize("make", [PlainProduct, PackedProduct])
@pytest.mark.parametrize("rows", ODD_ROWS)
def test_an_unrounded_product_is_not_rounded_to_the_weights_dtype(
    make: type[PlainProduct | PackedProduct], rows: int
) -> None:
    matrix, x = weight(), (torch.randn(rows, 96) * 20).bfloat16()
    got, exact = make(matrix).unrounded(x), x.double() @ matrix.double().t()

    assert got.dtype == torch.float32
    torch.testing.assert_close(got.double(), exact, atol=2e-3, rtol=1e-5)


@needs_onednn
def test_rows_do_not_depend_on_what_else_is_in_the_step() -> None:
    product, x = PackedProduct(weight()), torch.randn(16, 96).bfloat16()
    poisoned = x.clone()
    poisoned[1:] = torch.nan

    assert torch.equal(product(poisoned)[0], product(x)[0])


def seconds(*ratios: float) -> dict[int, PathSeconds]:
    return {rows: PathSeconds(2.0, 2.0 * ratio) for rows, ratio in zip(ROWS, ratios, strict=True)}


@pytest.mark.parametrize(
    ("ratios", "pays"),
    [
        ((0.7, 0.7, 0.7, 0.7), True),
        ((1.04, 0.71, 0.73, 0.72), True),
        ((1.0, 1.0, 1.0, 1.0), False),
        ((0.97, 0.97, 0.97, 0.97), False),
        ((2.0, 0.5, 1.0, 1.0), False),
        ((0.9, 0.9, 0.9, 2.0), False),
    ],
)
def test_packed_weights_pay_where_they_save_more_than_chance_over_all_row_counts(
    ratios: tuple[float, ...], pays: bool
) -> None:
    assert packed_pays(seconds(*ratios)) is pays


@pytest.mark.parametrize("untold", [PathSeconds(0.0, 0.0), PathSeconds(0.01, 0.0), PathSeconds(0.0, 0.01)])
def test_packed_weights_do_not_pay_where_the_clock_does_not_tell_a_time(untold: PathSeconds) -> None:
    assert not packed_pays({**seconds(0.5, 0.5, 0.5, 0.5), 8: untold})
    assert not packed_pays(dict.fromkeys(ROWS, untold))


@needs_onednn
def test_a_clock_that_does_not_tick_while_products_are_timed_leaves_weights_plain(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Under gVisor it ticks every 10 ms: the engine divided by zero at each start."""
    monkeypatch.setattr(time, "process_time", lambda: 1.0)
    with caplog.at_level(logging.INFO):
        assert isinstance(MeasuredProducts()(weight()), PlainProduct)
    assert "160 x 96: plain weights; packed ones take an unknown part (1 rows)" in caplog.text


@needs_onednn
def test_every_shape_is_measured_once_and_decides_for_its_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[torch.Size] = []

    def measured(matrix: Tensor) -> dict[int, PathSeconds]:
        asked.append(matrix.shape)
        return seconds(*([0.5] * 4 if matrix.shape[0] == 160 else [2.0] * 4))

    monkeypatch.setattr(linear_paths, "measure", measured)
    make = MeasuredProducts()
    made = [type(make(weight(rows))) for rows in (160, 32, 160, 32)]

    assert made == [PackedProduct, PlainProduct, PackedProduct, PlainProduct]
    assert asked == [(160, 96), (32, 96)]


@needs_onednn
def test_measuring_tells_times_for_every_row_count_and_leaves_the_weight_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "process_time", count().__next__)
    matrix = weight()
    before = matrix.clone()
    measured = linear_paths.measure(matrix)

    assert tuple(measured) == ROWS
    assert all(each.ratio == 1 for each in measured.values()), "by this clock each product takes a second"
    assert torch.equal(matrix, before)


@needs_onednn
@pytest.mark.parametrize("shape", [(16, 16), (1, 1), (160, 96)])
def test_a_small_weight_is_not_multiplied_until_it_weighs_as_much_as_a_large_one(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, int]
) -> None:
    """A model of tiny layers took half a minute a shape to load: sixteen thousand copies of 512 bytes."""
    made: list[Tensor] = []

    def packed(part: Tensor) -> PackedProduct:
        made.append(part)
        return PackedProduct(part)

    monkeypatch.setattr(linear_paths, "PackedProduct", packed)
    assert set(linear_paths.measure(weight(*shape))) == set(ROWS)
    assert len(made) == 64


@needs_onednn
def test_packing_lets_the_plain_weight_go() -> None:
    taken: list[weakref.ref[Tensor]] = []

    def make(matrix: Tensor) -> PackedProduct:
        taken.append(weakref.ref(matrix))
        return PackedProduct(matrix)

    tensors = RandomTensors(0, dtype=torch.bfloat16, device=CPU, product=make)
    linear = Linear.take_stacked(tensors, [("q", 64), ("k", 32)], 96)
    gc.collect()

    assert [matrix() for matrix in taken] == [None]
    assert linear(torch.ones(3, 96).bfloat16()).shape == (3, 96)


@pytest.mark.parametrize(
    ("dtype", "device"),
    [(torch.float32, "cpu"), (torch.float16, "cpu"), (torch.bfloat16, "cuda"), (torch.float16, "cuda")],
)
def test_weights_stay_plain_in_other_dtypes_and_on_other_devices(dtype: torch.dtype, device: str) -> None:
    assert choose_products(dtype, torch.device(device)) is PlainProduct


def test_weights_stay_plain_on_a_cpu_that_does_not_multiply_bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
    assert choose_products(torch.bfloat16, CPU) is PlainProduct


def test_weights_stay_plain_where_torch_lacks_onednn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert choose_products(torch.bfloat16, CPU) is PlainProduct


def test_weights_are_measured_in_bf16_on_a_cpu_that_multiplies_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
    assert isinstance(choose_products(torch.bfloat16, CPU), MeasuredProducts)
