"""The smoke stage: what must hold on a GPU before any speed is worth measuring.

Stages print one line of JSON each; one that fails never stops the next, and makes the exit status 1.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import torch

from bench.gpu_check.model_check import compare_backends
from kvik_kernels import aot, kv_write, paged_attention, rms_norm, rotary, swiglu
from kvik_kernels.activation import Activation
from kvik_kernels.device import device_of, interpreting
from kvik_kernels.paged_attention.naive import naive_paged_attention
from kvik_kernels.rms_norm.naive import naive_rms_norm
from kvik_kernels.rotary.naive import naive_rotary
from kvik_kernels.swiglu.naive import naive_swiglu
from kvik_kernels.testing import Row, assert_close, nan_filled_outputs, paged_case, tolerance

Figures = dict[str, Any]

ROWS = {
    "mixed": [Row(37, 37), Row(50, 1), Row(161, 130), Row(0, 1), Row(20, 3)],
    "decode": [Row(1, 1), Row(37, 1), Row(0, 1), Row(130, 1)],
    "split-decode": [Row(2500, 1), Row(3, 1)],
}
HEADS = [(9, 3), (32, 8)]


def environment(options: argparse.Namespace) -> Figures:
    """What runs where."""
    import triton

    figures: Figures = {"python": platform.python_version(), "torch": torch.__version__, "triton": triton.__version__}
    if options.device == "cpu":
        return {**figures, "device": "cpu", "interpreter": interpreting()}
    properties = torch.cuda.get_device_properties(0)
    return {**figures, "device": properties.name, "gib": round(properties.total_memory / 2**30)}


def compile_kernels(options: argparse.Namespace) -> Figures:
    """Every kernel for this device, in parallel processes, as the engine will launch it: no spills."""
    architecture = device_of(torch.empty(1, device=options.device), "device").architecture
    if architecture not in aot.TARGETS:
        return {"compiled": 0, "why": f"no signatures for {architecture}; the kernels stage compiles what it needs"}
    wanted = list(aot.variants([architecture], ["bf16", "fp32"], [64, 128]))
    registers: dict[str, int] = {}
    for variant, result in aot.compile_all(wanted, jobs=os.cpu_count() or 1):
        if isinstance(result, str):
            raise RuntimeError(f"{variant}: {result}")
        if result.spilled_bytes:
            raise RuntimeError(f"{variant}: {result.spilled_bytes} bytes spilled")
        registers[variant.kernel] = max(registers.get(variant.kernel, 0), result.registers)
    return {"compiled": len(wanted), "registers": registers}


def kernels(options: argparse.Namespace) -> Figures:
    """Every operation against its truth on the same device."""
    # In the interpreter `tl.dot` of bfloat16 returns garbage.
    half = torch.float16 if interpreting() else torch.bfloat16
    checked = 0
    for dtype in (torch.float32, half):
        for q_heads, kv_heads in HEADS:
            for name, rows in ROWS.items():
                for head_dim in (64, 128):
                    shape = {"q_heads": q_heads, "kv_heads": kv_heads, "head_dim": head_dim}
                    check_case(name, rows, dtype, options.device, shape)
                    checked += 1
        for tokens in (1, 130):
            for hidden in (576, 4096):
                check_elementwise(tokens, hidden, dtype, options.device)
                checked += 1
    return {"checked": checked}


def check_case(name: str, rows: Sequence[Row], dtype: torch.dtype, device: str, shape: dict[str, int]) -> None:
    """Write a case's keys and values with the kernel, then attend with the kernel."""
    case = paged_case(rows, dtype=dtype, device=device, **shape)
    label = f"{name} {dtype} {shape}"
    written_k, written_v = torch.full_like(case.k_cache, float("nan")), torch.full_like(case.v_cache, float("nan"))
    kv_write(case.k, case.v, written_k, written_v, case.slots)
    for part, got, want in (("k_cache", written_k, case.k_cache), ("v_cache", written_v, case.v_cache)):
        # NaN marks the slots that no token fills.
        if not torch.equal(got.nan_to_num(7.0), want.nan_to_num(7.0)):
            raise AssertionError(f"{label}: {part} differs")
    with nan_filled_outputs():
        got = paged_attention(*case.attention_arguments, scale=case.scale, max_query_len=case.max_query_len)
    want = naive_paged_attention(*case.attention_arguments, scale=case.scale)
    assert_close(label, got, want, **tolerance(dtype))


def check_elementwise(tokens: int, hidden: int, dtype: torch.dtype, device: str) -> None:
    """What runs between the products of a model that is `hidden` wide, on tokens of random numbers."""
    generator = torch.Generator().manual_seed(tokens + hidden)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(device)

    label = f"{tokens} tokens of {hidden} {dtype}"
    x, addend, weight = draw(tokens, hidden), draw(tokens, hidden).to(dtype), draw(hidden)
    heads, cos, sin = draw(tokens, hidden // 64, 64).to(dtype), draw(tokens, 1, 32), draw(tokens, 1, 32)
    gate_up = draw(tokens, 6 * hidden).to(dtype)
    want_sum, want_heads = x.clone(), heads.clone()
    want = naive_rms_norm(want_sum, weight, 1e-5, dtype, addend=addend)
    naive_rotary(want_heads, cos, sin)
    with nan_filled_outputs():
        assert_close(f"rms_norm {label}", rms_norm(x, weight, 1e-5, dtype, addend=addend), want, **tolerance(dtype))
        for activation in Activation:
            gated = swiglu(gate_up, activation)
            assert_close(f"swiglu {label}", gated, naive_swiglu(gate_up, activation), **tolerance(dtype))
    assert_close(f"rms_norm's sum {label}", x, want_sum, atol=0, rtol=0)
    rotary(heads, cos, sin)
    assert_close(f"rotary {label}", heads, want_heads, **tolerance(dtype))


def model(options: argparse.Namespace) -> Figures:
    """16 tokens of the demo model's shape with random weights: the device's own kernels against the reference."""
    return compare_backends(options.device, layers=options.layers)


STAGES: list[Callable[[argparse.Namespace], Figures]] = [environment, compile_kernels, kernels, model]


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench/gpu_check.sh", description=__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: only in Triton's interpreter")
    parser.add_argument("--layers", type=int, default=30, help="of the random model")
    options = parser.parse_args()
    if options.device == "cpu" and not interpreting():
        parser.error("--device cpu needs TRITON_INTERPRET=1")
    failed = False
    for stage in STAGES:
        started = time.perf_counter()
        try:
            outcome: Figures = {"ok": True, **stage(options)}
        except Exception as error:  # each stage reports its own failure, whatever it is
            traceback.print_exc()
            outcome = {"ok": False, "error": f"{type(error).__name__}: {error}"}
            failed = True
        line = {"stage": stage.__name__, "seconds": round(time.perf_counter() - started, 2), **outcome}
        print(json.dumps(line), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
