"""How linear layers multiply: by weights as they are, or in the order of a kernel. On a CPU that is measured, a shape
of weight after the other, while the model is loaded."""

from __future__ import annotations

import functools
import logging
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise

import torch
from torch import Tensor

from kvik_engine.errors import StartError, StartReason
from kvik_engine.layers.product import MakeProduct, PackedProduct, PanelProduct, PlainProduct, Product
from kvik_kernels.cpu.library import LibraryUnavailable, load_library
from kvik_kernels.cpu.product import serves

log = logging.getLogger(__name__)

ROWS = (1, 8, 16, 128)
"""Rows of the products that are timed: decoding alone, decoding in company, prefill."""
PLAIN, PACKED, PANELS = "plain", "packed", "panels"
"""Weights as they are, in oneDNN's order, in that of our own kernel."""
_PASSES = 4
_SAMPLE_BYTES = 8 << 20
"""Of weights that are multiplied by in turn: more than a core's own cache holds, as in a step, and soon done."""
_MOST_COPIES = 64
"""Of a small weight, whose products take the time of a call and not of their bytes."""
_GAIN = 0.95
"""Another order has to take less than this of the time: below it the difference may be chance."""

Seconds = Mapping[str, float]
"""Processor time that the same products took, by order of the weights: 0 where the clock ticks too seldom to tell, as
under gVisor."""


def quickest(measured: Mapping[int, Seconds]) -> str:
    """The order to keep weights in, from times by row count. It is one for all row counts, and each of these counts as
    much as another: a step of one row takes as long for its only client as a step of many for each of theirs. What was
    not measured for all of them is not taken."""
    shares = {PLAIN: _GAIN} | {order: share for order, share in relative(measured).items() if share is not None}
    return min(shares, key=lambda order: shares[order])


def relative(measured: Mapping[int, Seconds]) -> dict[str, float | None]:
    """The part of the plain weights' time that each other order takes: geometric mean over the row counts. None: the
    clock did not tell a time."""
    orders = {order for seconds in measured.values() for order in seconds} - {PLAIN}
    return {order: _mean([_share(seconds, order) for seconds in measured.values()]) for order in sorted(orders)}


def _share(seconds: Seconds, order: str) -> float | None:
    plain, other = seconds[PLAIN], seconds[order]
    return other / plain if plain > 0 and other > 0 else None


def _mean(shares: Sequence[float | None]) -> float | None:
    told = [share for share in shares if share is not None]
    return math.prod(told) ** (1 / len(told)) if len(told) == len(shares) else None


def choose_products(quantization: str, dtype: torch.dtype, device: torch.device) -> MakeProduct:
    """`quantization`: none or int8. Other orders of whole weights are for CPUs that multiply bf16 natively. In fp32
    they would lose alone what they win in company, and sum in another order than torch.

    Raises StartError (ConfigInvalid) where weights of int8 are not multiplied by.
    """
    if quantization == "int8":
        return _in_int8(dtype, device)
    if device.type != "cpu" or dtype != torch.bfloat16:
        return PlainProduct
    if not multiplies_bf16():
        log.info("linear layers: plain weights, as this CPU lacks AVX512-BF16")
        return PlainProduct
    return MeasuredProducts()


def multiplies_bf16() -> bool:
    """Whether this CPU does it natively."""
    return torch.cpu._is_avx512_bf16_supported()


def _in_int8(dtype: torch.dtype, device: torch.device) -> MakeProduct:
    lacking = "they run on CPUs only" if device.type != "cpu" else None
    if lacking is None and dtype not in (torch.bfloat16, torch.float32):
        lacking = "they are multiplied in bf16 or fp32"
    if lacking is None:
        try:
            library = load_library()
        except LibraryUnavailable as reason:
            lacking = f"the CPU kernels cannot be used: {reason}"
        else:
            if library.multiplies_bytes:
                return functools.partial(PanelProduct.int8, library)
            lacking = "this CPU lacks AVX512-VNNI"
    raise StartError(StartReason.CONFIG_INVALID, f"--quantization=int8: {lacking}; leave it out")


class MeasuredProducts:
    """A MakeProduct: the first weight of each shape is measured, and decides for the others."""

    def __init__(self) -> None:
        self._orders: dict[torch.Size, str] = {}

    def __call__(self, weight: Tensor) -> Product:
        made = candidates(weight)
        if weight.shape not in self._orders:
            self._orders[weight.shape] = self._decide(weight, made)
        return made[self._orders[weight.shape]](weight)

    @staticmethod
    def _decide(weight: Tensor, made: Mapping[str, MakeProduct]) -> str:
        measured = measure(weight, made)
        order = quickest(measured)
        log.info(
            "linear layers of %d x %d: %s weights; %s",
            *weight.shape,
            order,
            "; ".join(f"{other} ones take {_shown(share)} of the time" for other, share in relative(measured).items())
            or "no other order is served here",
        )
        return order


def _shown(share: float | None) -> str:
    return "an unknown part" if share is None else f"{share:.2f}"


def candidates(weight: Tensor) -> dict[str, MakeProduct]:
    """The orders that such a weight can be kept in here."""
    made: dict[str, MakeProduct] = {PLAIN: PlainProduct}
    if torch.backends.mkldnn.is_available():
        made[PACKED] = PackedProduct
    try:
        library = load_library()
    except LibraryUnavailable:
        return made  # runner/devices says why
    if serves(library, weight):
        made[PANELS] = functools.partial(PanelProduct.whole, library)
    return made


@torch.inference_mode()
def measure(weight: Tensor, made: Mapping[str, MakeProduct]) -> Mapping[int, Seconds]:
    """By row count, for about a tenth of a second in all: products with as much of the weight, or as many copies of it,
    as make the sample. On one thread: how others wait for work is no time of a product."""
    part = weight[: max(1, _SAMPLE_BYTES // (weight[0].numel() * weight.itemsize))]
    copies = min(_MOST_COPIES, max(1, _SAMPLE_BYTES // (part.numel() * part.itemsize)))
    products = {order: [make(part.clone()) for _ in range(copies)] for order, make in made.items()}
    measured: dict[int, Seconds] = {}
    with one_thread():
        for rows in ROWS:
            x = torch.randn(rows, weight.shape[1]).to(weight.dtype)
            # In turn, so that what else runs on the machine disturbs all; in processor time, so that it does so less.
            passes = [{order: _seconds(each, x) for order, each in products.items()} for _ in range(_PASSES)]
            measured[rows] = {order: _undisturbed([one[order] for one in passes]) for order in products}
    return measured


@contextmanager
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _seconds(products: Sequence[Product], x: Tensor) -> list[float]:
    """Processor time of each product."""
    times = [time.process_time()]
    for product in products:
        product(x)
        times.append(time.process_time())
    return [after - before for before, after in pairwise(times)]


def _undisturbed(passes: Sequence[list[float]]) -> float:
    """The sum of each product's fastest: interruptions only ever add, and so does the first pass, which warms up."""
    fastest: list[float] = [min(times) for times in zip(*passes, strict=True)]
    return sum(fastest)
