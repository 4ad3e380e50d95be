"""In which number format the model runs. On a CPU that is measured: bfloat16 is several times faster than fp32 where
the CPU multiplies it natively, and several times slower where it does not."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from statistics import geometric_mean

import torch

from kvik_engine.errors import StartError, StartReason
from kvik_engine.layers.product import MakeProduct, PlainProduct, Product
from kvik_engine.runner.linear_paths import candidates, multiplies_bf16

log = logging.getLogger(__name__)

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_ROWS = (1, 16, 128)
"""Rows of the matrix products that are timed: decoding alone, decoding in company, prefill."""
_REPEATS = 5


def choose_dtype(wanted: str, device: torch.device, hidden: int, intermediate: int) -> str:
    """Name of the dtype: one of DTYPES. `auto` on a CPU measures for about half a second.

    Raises StartError (ConfigInvalid).
    """
    if wanted in DTYPES:
        return wanted
    if wanted != "auto":
        raise StartError(StartReason.CONFIG_INVALID, f"the dtype {wanted!r} is not one of auto, {', '.join(DTYPES)}")
    if device.type == "cuda":
        name = "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp16"
        log.info("dtype %s", name)
        return name
    seconds = {name: _product_seconds(DTYPES[name], hidden, intermediate) for name in ("fp32", "bf16")}
    name = min(seconds, key=lambda key: seconds[key])
    log.info(
        "dtype %s: products take %.1f ms in fp32, %.1f ms in bf16", name, seconds["fp32"] * 1e3, seconds["bf16"] * 1e3
    )
    return name


@torch.inference_mode()
def _product_seconds(dtype: torch.dtype, hidden: int, intermediate: int) -> float:
    """Time of one layer's largest products by the quickest way in which they may be computed, the geometric mean over
    _ROWS: each of these counts as much as another."""
    weights = [torch.randn(2 * intermediate, hidden).to(dtype) for _ in range(4)]
    ways: Iterable[MakeProduct] = (PlainProduct,)
    if dtype == torch.bfloat16 and multiplies_bf16():
        ways = candidates(weights[0]).values()
    return min(_mean_seconds([make(weight.clone()) for weight in weights], hidden, dtype) for make in ways)


def _mean_seconds(products: Sequence[Product], inputs: int, dtype: torch.dtype) -> float:
    """All of `products`, for each number of rows the best of several tries."""
    times = []
    for rows in _ROWS:
        x = torch.randn(rows, inputs).to(dtype)

        def all_products(x: torch.Tensor = x) -> None:
            for product in products:
                product(x)

        times.append(best_seconds(all_products))
    return geometric_mean(times)


def best_seconds(work: Callable[[], object]) -> float:
    """The fastest of a few runs after a warm-up: interruptions only ever add."""
    work()
    best = float("inf")
    for _ in range(_REPEATS):
        started = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - started)
    return best
