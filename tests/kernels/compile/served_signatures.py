"""Run by test_served_signatures.py in a process of its own, outside the interpreter: calls the public functions on
CPU tensors, stops every launch where triton would compile, and prints what it would have compiled beside what aot does.
"""

import dataclasses
import itertools
import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver

from kvik_kernels import aot, kv_write, paged_attention, rms_norm, rotary, swiglu
from kvik_kernels.activation import Activation
from kvik_kernels.kv_write.kernel import kv_write_kernel, kv_write_quantised_kernel
from kvik_kernels.paged_attention.kernel import decode_kernel, prefill_kernel, reduce_kernel
from kvik_kernels.rms_norm.kernel import rms_norm_kernel
from kvik_kernels.rotary.kernel import rotary_kernel
from kvik_kernels.swiglu.kernel import swiglu_kernel
from kvik_kernels.testing import Row, paged_case, quantised_case

ELEMENTS = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}
ROWS = {
    "kv_write": [Row(5, 5)],
    "prefill": [Row(80, 33), Row(17, 1), Row(9, 9)],
    # Rows enough to fill each device, so that they are not split.
    "prefill_short": [Row(80, 2), Row(17, 1)],
    "prefill_window": [Row(80, 33), Row(17, 1), Row(9, 9)],
    "decode": [Row(31, 1)] * 700,
    "decode_split": [Row(3000, 1)],
    "decode_window": [Row(3000, 1)],
    "reduce": [Row(3000, 1)],
}
TOKENS = 5
"""Of calls between the products."""


KERNELS = (
    *(kv_write_kernel, kv_write_quantised_kernel, prefill_kernel, decode_kernel, reduce_kernel),
    *(rms_norm_kernel, rotary_kernel, swiglu_kernel),
)


class NoDevice:
    """As much of a triton driver as is asked before anything is compiled."""

    def __init__(self, target: GPUTarget) -> None:
        self._target = target

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


@contextmanager
def collecting(target: str) -> Iterator[dict[str, list[dict[str, Any]]]]:
    """What is launched meanwhile, as triton would compile it for `target`, by kernel."""
    seen: dict[str, list[dict[str, Any]]] = defaultdict(list)

    def instead_of_compiling(*, fn: Any, compile: dict[str, Any], **_: Any) -> bool:
        names = fn.jit_function.arg_names
        (attributes,) = compile["configs"]
        aligned = [path for path, values in attributes.items() if ["tt.divisibility", 16] in values]
        seen[fn.name].append(
            {
                "signature": compile["signature"],
                "aligned": sorted(names[path[0]] for path in aligned),
                "constants": {names[path[0]]: value for path, value in compile["constants"].items()},
                "warps": compile["num_warps"],
                "stages": compile["num_stages"],
                "fp_fusion": compile["enable_fp_fusion"],
            }
        )
        return True

    backend, architecture, warp_size, device = aot.TARGETS[target]
    driver.set_active(NoDevice(GPUTarget(backend, architecture, warp_size)))
    for function in KERNELS:
        # A kernel keeps the target of its first launch.
        function.device_caches.clear()
    with (
        mock.patch.object(triton.knobs.runtime, "jit_cache_hook", instead_of_compiling),
        mock.patch("kvik_kernels.device.device_of", return_value=device),
    ):
        yield seen


def call_elementwise(variant: aot.Variant, tokens: int) -> None:
    """The public function of one kernel between the products, over tensors as the engine has them."""
    dtype = ELEMENTS[variant.element]
    q_heads = variant.kv_heads * variant.group
    hidden = q_heads * variant.head_dim
    if variant.kernel == "rotary":
        projected = torch.zeros(tokens, q_heads + 2 * variant.kv_heads, variant.head_dim, dtype=dtype)
        cos, sin = torch.zeros(2, tokens, 1, variant.head_dim // 2)
        rotary(projected[:, : q_heads + variant.kv_heads], cos, sin)
    elif variant.kernel in ("swiglu", "geglu"):
        activation = Activation.SILU if variant.kernel == "swiglu" else Activation.GELU_TANH
        swiglu(torch.zeros(tokens, 2 * aot.FEED_FORWARD * hidden, dtype=dtype), activation)
    else:
        addend = torch.zeros(tokens, hidden, dtype=dtype) if variant.kernel == "add_rms_norm" else None
        rms_norm(torch.zeros(tokens, hidden), torch.zeros(hidden), 1e-5, dtype, addend=addend)


def call(variant: aot.Variant, rows: Sequence[Row]) -> None:
    """Both functions over a cache, on tensors as the engine has them: q, k and v are slices of one projection."""
    q_heads = variant.kv_heads * variant.group
    case = paged_case(
        rows,
        q_heads=q_heads,
        kv_heads=variant.kv_heads,
        head_dim=variant.head_dim,
        dtype=ELEMENTS[variant.element],
    )
    tokens = case.q.shape[0]
    if variant.kept != "plain":
        case = quantised_case(case, *aot.KEPT[variant.kept])
    projected = torch.zeros(tokens, q_heads + 2 * variant.kv_heads, variant.head_dim, dtype=case.q.dtype)
    q, k, v = projected.split((q_heads, variant.kv_heads, variant.kv_heads), dim=1)
    scales = {"k_scales": case.k_scales, "v_scales": case.v_scales}
    kv_write(k, v, case.k_cache, case.v_cache, case.slots[:tokens], **scales)
    window = aot.WINDOW if variant.kernel.endswith("_window") else None
    paged_attention(
        q,
        *case.attention_arguments[1:],
        scale=case.scale,
        max_query_len=case.max_query_len,
        window=window,
        **scales,
    )


def compiled(variant: aot.Variant) -> dict[str, Any]:
    """What aot compiles."""
    source = aot.source_of(variant)
    return {
        "signature": source.signature,
        "aligned": sorted(source.aligned),
        "constants": source.constants,
        "warps": source.warps,
        "stages": source.stages,
        "fp_fusion": True,
    }


def print_served_beside_aot() -> None:
    shapes = {"bf16": (64, 3), "fp16": (128, 4), "fp32": (64, 3)}
    for target, (element, (head_dim, group)) in itertools.product(aot.TARGETS, shapes.items()):
        has_fp8 = aot.TARGETS[target][3].has_fp8
        quantised = [kept for kept in aot.KEPT if element == "bf16" and (has_fp8 or not aot.needs_fp8(kept))]
        variants = (aot.variants([target], [element], [head_dim], [group], kept) for kept in ("plain", *quantised))
        for variant in itertools.chain.from_iterable(variants):
            with collecting(target) as seen:
                if variant.kernel in aot.ELEMENTWISE_KERNELS:
                    call_elementwise(variant, TOKENS)
                else:
                    call(variant, ROWS[variant.kernel])
            (served,) = seen[aot.source_of(variant).function.__name__]
            print(json.dumps({"variant": dataclasses.asdict(variant), "served": served, "aot": compiled(variant)}))


def print_variants_of_many_batches() -> None:
    variant = aot.Variant("any", "sm_90", "bf16", head_dim=64, group=3, kv_heads=3)
    batches = [[Row(length, 1)] * rows for rows in (1, 2, 16, 17, 200) for length in (1, 16, 40, 1500)]
    batches += [[Row(length, queries)] * rows for rows in (1, 5) for length in (16, 700) for queries in (2, 3, 16)]
    with collecting(variant.target) as seen:
        for rows in batches:
            call(variant, rows)
            for kernel in aot.ELEMENTWISE_KERNELS:
                call_elementwise(replace(variant, kernel=kernel), sum(row.queries for row in rows))
    distinct = {name: len({json.dumps(one) for one in launched}) for name, launched in seen.items()}
    print(json.dumps({"batches": len(batches), "distinct": distinct}))


if __name__ == "__main__":
    print_served_beside_aot()
    print_variants_of_many_batches()
