"""How linear layers multiply: by weights as they are, or by packed ones. On a CPU that is measured, a shape of weight
after the other, while the model is loaded."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from kvik_engine.layers.product import MakeProduct, PackedProduct, PlainProduct, Product

log = logging.getLogger(__name__)

ROWS = (1, 8, 16, 128)
"""Rows of the products that are timed: decoding alone, decoding in company, prefill."""
_PASSES = 4
_SAMPLE_BYTES = 8 << 20
"""Of weights that are multiplied by in turn: more than a core's own cache holds, as in a step, and soon done."""
_MOST_COPIES = 64
"""Of a small weight, whose products take the time of a call and not of their bytes."""
_GAIN = 0.95
"""Packed weights have to take less than this of the time: below it the difference may be chance."""


@dataclass(frozen=True, slots=True)
class PathSeconds:
    """Processor time that the same products took: 0 where its clock ticks too seldom to tell, as under gVisor."""

    plain: float
    packed: float

    @property
    def ratio(self) -> float | None:
        """None where the clock did not tell one of the times."""
        return self.packed / self.plain if self.plain > 0 and self.packed > 0 else None


def packed_pays(measured: Mapping[int, PathSeconds]) -> bool:
    """By row count. A weight is kept in one layout for all row counts, and each of these counts as much as another: a
    step of one row takes as long for its only client as a step of many for each of theirs. What was not measured for
    all of them does not pay."""
    ratios = [seconds.ratio for seconds in measured.values() if seconds.ratio is not None]
    return len(ratios) == len(measured) and math.prod(ratios) ** (1 / len(ratios)) < _GAIN


def choose_products(dtype: torch.dtype, device: torch.device) -> MakeProduct:
    """Packed products are for CPUs that multiply bf16 natively. In fp32 they would lose alone what they win in company,
    and sum in another order than torch."""
    if device.type != "cpu" or dtype != torch.bfloat16:
        return PlainProduct
    if not (torch.backends.mkldnn.is_available() and torch.cpu._is_avx512_bf16_supported()):
        log.info("linear layers: plain weights, as this CPU lacks AVX512-BF16 or this torch lacks oneDNN")
        return PlainProduct
    return MeasuredProducts()


class MeasuredProducts:
    """A MakeProduct: the first weight of each shape is measured, and decides for the others."""

    def __init__(self) -> None:
        self._packs: dict[torch.Size, bool] = {}

    def __call__(self, weight: Tensor) -> Product:
        if weight.shape not in self._packs:
            self._packs[weight.shape] = self._decide(weight)
        return PackedProduct(weight) if self._packs[weight.shape] else PlainProduct(weight)

    @staticmethod
    def _decide(weight: Tensor) -> bool:
        measured = measure(weight)
        packs = packed_pays(measured)
        log.info(
            "linear layers of %d x %d: %s weights; packed ones take %s of the time",
            *weight.shape,
            "packed" if packs else "plain",
            ", ".join(f"{_shown(seconds.ratio)} ({rows} rows)" for rows, seconds in measured.items()),
        )
        return packs


def _shown(ratio: float | None) -> str:
    return "an unknown part" if ratio is None else f"{ratio:.2f}"


@torch.inference_mode()
def measure(weight: Tensor) -> dict[int, PathSeconds]:
    """By row count, for about a tenth of a second in all: products with as much of the weight, or as many copies of it,
    as make the sample."""
    part = weight[: max(1, _SAMPLE_BYTES // (weight[0].numel() * weight.itemsize))]
    copies = min(_MOST_COPIES, max(1, _SAMPLE_BYTES // (part.numel() * part.itemsize)))
    plain = [PlainProduct(part.clone()) for _ in range(copies)]
    packed = [PackedProduct(part) for _ in range(copies)]
    measured = {}
    for rows in ROWS:
        x = torch.randn(rows, weight.shape[1]).to(weight.dtype)
        # In turn, so that what else runs on the machine disturbs both, and in processor time, so that it does so less.
        passes = [(_seconds(plain, x), _seconds(packed, x)) for _ in range(_PASSES)]
        measured[rows] = PathSeconds(*(_undisturbed(path) for path in zip(*passes, strict=True)))
    return measured


def _seconds(products: Sequence[Product], x: Tensor) -> list[float]:
    """Processor time of each product, of all threads."""
    times = [time.process_time()]
    for product in products:
        product(x)
        times.append(time.process_time())
    return [after - before for before, after in pairwise(times)]


def _undisturbed(passes: Sequence[list[float]]) -> float:
    """The sum of each product's fastest: interruptions only ever add, and so does the first pass, which warms up."""
    fastest: list[float] = [min(times) for times in zip(*passes, strict=True)]
    return sum(fastest)
