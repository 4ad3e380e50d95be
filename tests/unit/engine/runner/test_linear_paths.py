"""Products with packed weights, and when they are chosen."""

from __future__ import annotations

import gc
import logging
import time
import weakref
from dataclasses import replace
from itertools import count

import pytest
import torch
from torch import Tensor

from kvik_engine.errors import StartError, StartReason
from kvik_engine.layers.linear import Linear
from kvik_engine.layers.product import MakeProduct, PackedProduct, PanelProduct, PlainProduct, Product
from kvik_engine.models.random_weights import RandomTensors
from kvik_engine.runner import linear_paths
from kvik_engine.runner.linear_paths import (
    PACKED,
    PANELS,
    PLAIN,
    ROWS,
    MeasuredProducts,
    candidates,
    choose_products,
    quickest,
)
from kvik_kernels.cpu.library import InstructionSet, Library, LibraryUnavailable, load_library
from tests.support.cpu_kernels import SETS

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


def panels(matrix: Tensor) -> PanelProduct:
    return PanelProduct.whole(load_library(), matrix)


needs_panels = pytest.mark.skipif(InstructionSet.AVX512_BF16 not in SETS, reason="no products of bfloat16 on this CPU")
ORDERS = [
    pytest.param(PackedProduct, id="packed", marks=needs_onednn),
    pytest.param(panels, id="panels", marks=needs_panels),
]


@pytest.mark.parametrize("make", ORDERS)
@pytest.mark.parametrize("rows", ODD_ROWS)
@pytest.mark.parametrize("biased", [False, True])
def test_a_product_in_another_order_equals_the_plain_one(make: MakeProduct, rows: int, biased: bool) -> None:
    matrix, x = weight(), torch.randn(rows, 96).bfloat16()
    bias = torch.randn(160).bfloat16() if biased else None
    got = make(matrix)(x, bias)

    assert (got.shape, got.dtype, got.is_contiguous()) == ((rows, 160), torch.bfloat16, True)
    torch.testing.assert_close(got, PlainProduct(matrix)(x, bias), **ONE_STEP)


@pytest.mark.parametrize("make", ORDERS)
@pytest.mark.parametrize("rows", ODD_ROWS)
def test_strides_of_input_and_weight_change_nothing(make: MakeProduct, rows: int) -> None:
    matrix = weight()
    across, within = torch.randn(96, rows).bfloat16().t(), torch.randn(rows, 300).bfloat16()[:, 100:196]
    transposed = matrix.t().contiguous().t()
    for x in (across, within):
        want = make(matrix)(x.contiguous())
        torch.testing.assert_close(make(matrix)(x), want, **ONE_STEP)
        torch.testing.assert_close(make(transposed)(x), want, **ONE_STEP)


@pytest.mark.parametrize("make", ORDERS)
def test_an_input_may_have_more_dimensions(make: MakeProduct) -> None:
    matrix, x = weight(), torch.randn(3, 2, 96).bfloat16()
    got = make(matrix)(x)
    assert torch.equal(got, make(matrix)(x.view(6, 96)).view(3, 2, 160))


@pytest.mark.parametrize("make", [pytest.param(PlainProduct, id="plain"), *ORDERS])
@pytest.mark.parametrize("rows", ODD_ROWS)
def test_an_unrounded_product_is_not_rounded_to_the_weights_dtype(make: MakeProduct, rows: int) -> None:
    matrix, x = weight(), (torch.randn(rows, 96) * 20).bfloat16()
    got, exact = make(matrix).unrounded(x), x.double() @ matrix.double().t()

    assert got.dtype == torch.float32
    torch.testing.assert_close(got.double(), exact, atol=2e-3, rtol=1e-5)


@pytest.mark.parametrize("make", ORDERS)
def test_rows_do_not_depend_on_what_else_is_in_the_step(make: MakeProduct) -> None:
    product, x = make(weight()), torch.randn(16, 96).bfloat16()
    poisoned = x.clone()
    poisoned[1:] = torch.nan

    assert torch.equal(product(poisoned)[0], product(x)[0])


def times(**orders: tuple[float, ...]) -> dict[int, dict[str, float]]:
    """By row count, from each order's share of the plain weights' time."""
    return {
        rows: {PLAIN: 2.0, **{order: 2.0 * shares[index] for order, shares in orders.items()}}
        for index, rows in enumerate(ROWS)
    }


@pytest.mark.parametrize(
    ("shares", "pays"),
    [
        ((0.7, 0.7, 0.7, 0.7), True),
        ((1.04, 0.71, 0.73, 0.72), True),
        ((1.0, 1.0, 1.0, 1.0), False),
        ((0.97, 0.97, 0.97, 0.97), False),
        ((2.0, 0.5, 1.0, 1.0), False),
        ((0.9, 0.9, 0.9, 2.0), False),
    ],
)
def test_another_order_pays_where_it_saves_more_than_chance_over_all_row_counts(
    shares: tuple[float, ...], pays: bool
) -> None:
    assert quickest(times(packed=shares)) == (PACKED if pays else PLAIN)


def test_of_several_orders_that_pay_the_quickest_is_taken() -> None:
    assert quickest(times(packed=(0.9, 0.7, 0.7, 0.7), panels=(0.5, 0.6, 0.7, 0.9))) == PANELS
    assert quickest(times(packed=(0.9, 0.7, 0.7, 0.2), panels=(0.5, 0.6, 0.7, 0.9))) == PACKED
    assert quickest(times()) == PLAIN


@pytest.mark.parametrize("untold", [(0.0, 0.0), (0.01, 0.0), (0.0, 0.01)])
def test_an_order_does_not_pay_where_the_clock_does_not_tell_a_time(untold: tuple[float, float]) -> None:
    plain, packed = untold
    assert quickest({**times(packed=(0.5,) * 4), 8: {PLAIN: plain, PACKED: packed}}) == PLAIN


@needs_onednn
def test_a_clock_that_does_not_tick_while_products_are_timed_leaves_weights_plain(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Under gVisor it ticks every 10 ms: the engine divided by zero at each start."""
    monkeypatch.setattr(time, "process_time", lambda: 1.0)
    with caplog.at_level(logging.INFO):
        assert isinstance(MeasuredProducts()(weight()), PlainProduct)
    assert "160 x 96: plain weights; packed ones take an unknown part of the time" in caplog.text


def test_every_shape_is_measured_once_and_decides_for_its_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[torch.Size] = []

    def measured(matrix: Tensor, _: object) -> dict[int, dict[str, float]]:
        asked.append(matrix.shape)
        return times(packed=(0.5 if matrix.shape[0] == 160 else 2.0,) * 4)

    monkeypatch.setattr(linear_paths, "measure", measured)
    monkeypatch.setattr(linear_paths, "candidates", lambda _: {PLAIN: PlainProduct, PACKED: PackedProduct})
    make = MeasuredProducts()
    made = [type(make(weight(rows))) for rows in (160, 32, 160, 32)]

    assert made == [PackedProduct, PlainProduct, PackedProduct, PlainProduct]
    assert asked == [(160, 96), (32, 96)]


def test_measuring_tells_times_for_every_row_count_and_leaves_the_weight_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "process_time", count().__next__)
    matrix = weight()
    before = matrix.clone()
    made = candidates(matrix)
    measured = linear_paths.measure(matrix, made)

    assert tuple(measured) == ROWS
    assert all(seconds == dict.fromkeys(made, 64) for seconds in measured.values()), "each product takes a second"
    assert torch.equal(matrix, before)


def test_products_are_measured_on_one_thread_and_the_others_come_back() -> None:
    """Threads of our kernels wait awake, which is processor time: their products would count twice."""
    threads, seen = torch.get_num_threads(), set[int]()

    class Watched(PlainProduct):
        def __call__(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
            seen.add(torch.get_num_threads())
            return super().__call__(x, bias)

    torch.set_num_threads(3)
    try:
        linear_paths.measure(weight(), {PLAIN: Watched})
        assert seen == {1}
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("shape", [(16, 16), (1, 2), (160, 96)])
def test_a_small_weight_is_not_multiplied_until_it_weighs_as_much_as_a_large_one(shape: tuple[int, int]) -> None:
    """A model of tiny layers took half a minute a shape to load: sixteen thousand copies of 512 bytes."""
    made: list[Tensor] = []

    def plain(part: Tensor) -> PlainProduct:
        made.append(part)
        return PlainProduct(part)

    assert set(linear_paths.measure(weight(*shape), {PLAIN: plain})) == set(ROWS)
    assert len(made) == 64


def test_an_order_is_a_candidate_where_it_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    def unavailable() -> Library:
        raise LibraryUnavailable("not built")

    with monkeypatch.context() as patch:
        patch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
        patch.setattr(linear_paths, "load_library", unavailable)
        assert set(candidates(weight())) == {PLAIN}
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
    assert (PANELS in candidates(weight())) == (InstructionSet.AVX512_BF16 in SETS)
    assert set(candidates(weight(columns=95))) == {PLAIN, PACKED}


@pytest.mark.parametrize("order", ORDERS)
def test_packing_lets_the_plain_weight_go(order: MakeProduct) -> None:
    taken: list[weakref.ref[Tensor]] = []

    def make(matrix: Tensor) -> Product:
        taken.append(weakref.ref(matrix))
        return order(matrix)

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
    assert choose_products("none", dtype, torch.device(device)) is PlainProduct


def test_weights_stay_plain_on_a_cpu_that_does_not_multiply_bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
    assert choose_products("none", torch.bfloat16, CPU) is PlainProduct


def test_weights_are_measured_in_bf16_on_a_cpu_that_multiplies_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)
    assert isinstance(choose_products("none", torch.bfloat16, CPU), MeasuredProducts)


@pytest.mark.parametrize(
    ("dtype", "device", "lacking"),
    [(torch.bfloat16, "cuda", "CPUs only"), (torch.float16, "cpu", "bf16 or fp32")],
)
def test_weights_of_int8_are_refused_where_nothing_multiplies_by_them(
    dtype: torch.dtype, device: str, lacking: str
) -> None:
    with pytest.raises(StartError, match=f"--quantization=int8: .*{lacking}") as refused:
        choose_products("int8", dtype, torch.device(device))
    assert refused.value.reason is StartReason.CONFIG_INVALID


def test_weights_of_int8_are_refused_on_a_cpu_that_does_not_multiply_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    without = replace(load_library(), multiplies_bytes=False)
    monkeypatch.setattr(linear_paths, "load_library", lambda: without)
    with pytest.raises(StartError, match="AVX512-VNNI"):
        choose_products("int8", torch.bfloat16, CPU)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_products_by_int8_are_near_those_of_the_weights_as_they_were(dtype: torch.dtype) -> None:
    if not load_library().multiplies_bytes:
        pytest.skip("no products of bytes on this CPU")
    weight, x = torch.randn(70, 96).to(dtype), torch.randn(2, 5, 96).to(dtype)
    product = choose_products("int8", dtype, CPU)(weight.clone())
    got, want = product(x), x.float() @ weight.float().t()
    assert (got.shape, got.dtype) == ((2, 5, 70), dtype)
    assert (got.float() - want).norm() < 0.02 * want.norm()
    assert product.unrounded(x[0]).dtype == torch.float32
