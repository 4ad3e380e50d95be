"""Every kernel compiles for four targets with the oldest and the newest triton, and fits its registers."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from kvik_kernels import aot

pytestmark = pytest.mark.timeout(600)

LONG = pytest.mark.long
TRITONS = ["3.9", "3.6"]
TARGETS = ["sm_80", "sm_90", "sm_100", "gfx942"]
# The demo model's shape in bf16, an 8B model's in fp16; and float32, in which a GPU is checked against the reference.
SHAPES = [
    ("--elements", "bf16", "--head-dims", "64", "--groups", "3"),
    ("--elements", "fp16", "--head-dims", "128", "--groups", "4"),
]
FLOAT32 = ("--targets", "sm_90", "--elements", "fp32", "--head-dims", "64", "--groups", "3")
EVERYTHING = ("--elements", "bf16", "fp16", "fp32", "--head-dims", "64", "128", "--groups", "3", "4")

ELEMENTWISE_LIMITS = dict.fromkeys(aot.ELEMENTWISE_KERNELS, 40)
"""Registers a thread of what runs between the products: 1,536 threads of a processor fit with 40."""

# Registers a thread. Decode programs must fit four to a processor (launch.PROGRAMS_PER_PROCESSOR): 128 at 128 threads
# where the registers are NVIDIA's 65,536; three on sm_80, whose matrix units read registers. One more register than
# these is no fault in itself, but someone should look.
REGISTER_LIMITS = {
    "sm_80": {
        "kv_write": 40,
        "prefill": 255,
        "prefill_short": 168,
        "prefill_window": 255,
        "decode": 128,
        "decode_split": 168,
        "decode_window": 168,
        "reduce": 48,
        **ELEMENTWISE_LIMITS,
    },
    "sm_90": {
        "kv_write": 40,
        "prefill": 224,
        "prefill_short": 168,
        "prefill_window": 255,
        "decode": 128,
        "decode_split": 128,
        "decode_window": 168,
        "reduce": 48,
        **ELEMENTWISE_LIMITS,
    },
    "sm_100": {
        "kv_write": 40,
        "prefill": 224,
        "prefill_short": 168,
        "prefill_window": 255,
        "decode": 128,
        "decode_split": 128,
        "decode_window": 168,
        "reduce": 48,
        **ELEMENTWISE_LIMITS,
    },
    "gfx942": {
        "kv_write": 32,
        "prefill": 256,
        "prefill_short": 176,
        "prefill_window": 256,
        "decode": 176,
        "decode_split": 176,
        "decode_window": 176,
        "reduce": 48,
        **ELEMENTWISE_LIMITS,
    },
}
# Over quantised caches: elements are widened in registers. gfx942 counts those of its matrix units too, 512 in all.
QUANTISED_LIMITS = {
    "sm_80": {"kv_write": 64, "prefill": 255, "prefill_short": 168, "prefill_window": 255, "decode": 168},
    "sm_90": {"kv_write": 64, "prefill": 255, "prefill_short": 168, "prefill_window": 255, "decode": 168},
    "sm_100": {"kv_write": 64, "prefill": 255, "prefill_short": 168, "prefill_window": 255, "decode": 168},
    "gfx942": {"kv_write": 40, "prefill": 384, "prefill_short": 256, "prefill_window": 384, "decode": 256},
}
"""`decode` stands for its variants."""
CONVERSION_STACK = 16
"""Bytes of stack that widening takes in a few variants: of four bits on sm_80 by triton 3.6, of eight on sm_90."""
MATRIX_STACK = {"sm_100": 48}
"""Bytes of stack that prefill takes there: least over plain caches, most with a window over scaled ones."""
SHARED_LIMITS = {"sm_80": 163 * 1024, "sm_90": 227 * 1024, "sm_100": 227 * 1024, "gfx942": 64 * 1024}

Compiled = dict[str, Any]


def check(compiled: Compiled) -> None:
    what = {name: compiled[name] for name in ("triton", "target", "kernel", "element", "head_dim", "group")}
    target, kernel, kept = compiled["target"], compiled["kernel"], compiled["kept"]
    if kept == "plain":
        most = REGISTER_LIMITS[target][kernel]
    else:
        most = QUANTISED_LIMITS[target]["decode" if kernel.startswith("decode") else kernel]
    stack = max(0 if kept == "plain" else CONVERSION_STACK, MATRIX_STACK.get(target, 0))
    assert compiled["spilled_bytes"] <= stack, (what, compiled["spilled_bytes"])
    assert 0 < compiled["registers"] <= most, (what, compiled["registers"])
    assert compiled["shared_bytes"] <= SHARED_LIMITS[target], what
    attends = kernel not in ("kv_write", "reduce", *aot.ELEMENTWISE_KERNELS)
    if attends and compiled["element"] != "fp32":
        assert compiled["matrix_instructions"] > 0, what
    if attends and target != "gfx942":
        # A pointer or stride that lost its alignment doubles the registers and loses these.
        assert compiled["async_copies"] > 0, what


@pytest.mark.parametrize("shape", SHAPES, ids=["bf16-dim64-group3", "fp16-dim128-group4"])
@pytest.mark.parametrize("triton", TRITONS)
def test_kernels_compile_without_spills(
    compile_with: Callable[..., list[Compiled]], triton: str, shape: tuple[str, ...]
) -> None:
    compiled = compile_with(triton, *shape)
    assert {one["triton"].rsplit(".", 1)[0] for one in compiled} == {triton}
    assert {(one["target"], one["kernel"]) for one in compiled} == {
        (target, kernel) for target, kernels in REGISTER_LIMITS.items() for kernel in kernels
    }
    for one in compiled:
        check(one)


@pytest.mark.parametrize(
    ("target", "kept", "triton"),
    [
        pytest.param(target, kept, triton, marks=() if (target, kept, triton) == ("sm_90", "int8", "3.9") else LONG)
        for target, kept, triton in itertools.product(TARGETS, aot.KEPT, TRITONS)
        if target != "sm_80" or not aot.needs_fp8(kept)
    ],
)
def test_kernels_over_quantised_caches_compile_without_spills(
    compile_with: Callable[..., list[Compiled]], target: str, kept: str, triton: str
) -> None:
    compiled = compile_with(triton, "--targets", target, "--kept", kept, *SHAPES[0])
    assert {one["kernel"] for one in compiled} == set(aot.CACHE_KERNELS)
    for one in compiled:
        check(one)


@pytest.mark.parametrize("triton", TRITONS)
def test_float32_compiles_for_the_check_on_a_gpu(compile_with: Callable[..., list[Compiled]], triton: str) -> None:
    for one in compile_with(triton, *FLOAT32):
        check(one)


@pytest.mark.parametrize("triton", TRITONS)
def test_prefill_on_hopper_uses_the_wide_matrix_units(compile_with: Callable[..., list[Compiled]], triton: str) -> None:
    """wgmma needs 64 rows, and its operands in shared memory leave registers free that mma.sync needs on sm_80."""
    compiled = compile_with(triton, *SHAPES[0])
    registers = {one["target"]: one["registers"] for one in compiled if one["kernel"] == "prefill"}
    assert registers["sm_90"] < registers["sm_80"]


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("triton", TRITONS)
def test_every_variant_compiles_without_spills(compile_with: Callable[..., list[Compiled]], triton: str) -> None:
    compiled = compile_with(triton, *EVERYTHING)
    assert len(compiled) == len(aot.KERNELS) * len(TARGETS) * 3 * 2 * 2
    for one in compiled:
        check(one)
