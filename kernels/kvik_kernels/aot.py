"""Compile the kernels for GPUs that are not there, and say what each variant costs.

`python -m kvik_kernels.aot` prints one JSON object a variant. It needs triton and no torch, so that any triton can be
tried; the compilers and `cuobjdump` come in triton's wheel. The signatures are those that serving launches: constants
from the launch tables, alignment as the engine's tensors have it. (On AMD, triton also marks tensors under 2 GiB, which
a KV pool is not, to reach them by 32-bit offsets: queries and outputs are compiled here without that.)
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence, Set
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kvik_kernels.device import Device
from kvik_kernels.kv_write import launch as kv_write_launch
from kvik_kernels.paged_attention import launch as attention_launch
from kvik_kernels.rms_norm import launch as norm_launch
from kvik_kernels.rotary import launch as rotary_launch
from kvik_kernels.swiglu import launch as gate_launch

TARGETS: Mapping[str, tuple[str, int | str, int, Device]] = {
    "sm_80": ("cuda", 80, 32, Device("sm_80", 108)),
    "sm_90": ("cuda", 90, 32, Device("sm_90", 132)),
    "sm_100": ("cuda", 100, 32, Device("sm_100", 148)),
    "gfx942": ("hip", "gfx942", 64, Device("gfx942", 304)),
}
"""Name -> triton's backend, architecture and warp size, and the device that the launch tables see."""

CACHE_KERNELS = (
    "kv_write",
    "prefill",
    "prefill_short",
    "prefill_window",
    "decode",
    "decode_split",
    "decode_window",
)
"""What reads or writes the KV cache, and so depends on what it keeps."""
ELEMENTWISE_KERNELS = ("rms_norm", "add_rms_norm", "rotary", "swiglu", "geglu")
"""What runs between the products."""
KERNELS = (*CACHE_KERNELS, "reduce", *ELEMENTWISE_KERNELS)
WINDOW = 1024
"""Tokens of the window kernels' variants."""
FEED_FORWARD = 3
"""How many times as wide as the hidden state a feed-forward network is in its variants."""
ELEMENTS = {"fp16": 2, "bf16": 2, "fp32": 4}
STORED = {"int8": ("*i8", True), "fp8": ("*fp8e4nv", False), "fp8-dynamic": ("*fp8e4nv", True), "int4": ("*u8", True)}
"""What a quantised cache holds: the type of its elements, and whether it has scales."""
KEPT = {**{name: (name, name) for name in STORED}, "int8+int4": ("int8", "int4")}
"""What keys and values are kept as, by the name of both."""
BLOCK_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Variant:
    """One kernel as it is launched for one model shape on one target."""

    kernel: str
    target: str
    element: str
    head_dim: int
    group: int
    kv_heads: int
    kept: str = "plain"
    """What keys and values are kept as: a name of KEPT, or as they are computed."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What a compiled variant takes of a processor."""

    variant: Variant
    registers: int
    """Vector registers a thread."""
    spilled_bytes: int
    """Local memory a thread that the compiler made up for want of registers."""
    shared_bytes: int
    """Shared memory a program."""
    matrix_instructions: int
    """tcgen05, wgmma, mma.sync or mfma instructions in the code: none where tl.dot fell back to scalar arithmetic."""
    async_copies: int
    """cp.async instructions: none where a load is too narrow to be pipelined, and on AMD."""


@dataclass(frozen=True, slots=True)
class Source:
    """What triton compiles: equal to what a launch over the engine's tensors would (tests/kernels/compile)."""

    function: Any
    signature: Mapping[str, str]
    """Argument name -> pointer or scalar type, or `constexpr`."""
    aligned: frozenset[str]
    """Arguments that are multiples of 16: all strides, and the pointers whose kernel specialises on it."""
    constants: Mapping[str, Any]
    warps: int
    stages: int

    @classmethod
    def of(
        cls, function: Any, types: Mapping[str, str], unaligned: Set[str], constants: Mapping[str, Any], **options: int
    ) -> Source:
        """`types` leaves out the strides; they are 32-bit. `constants` may hold those of other kernels."""
        constants = {name: value for name, value in constants.items() if name in function.arg_names}
        signature = {name: "constexpr" if name in constants else types.get(name, "i32") for name in function.arg_names}
        scalars = {name for name, kind in types.items() if not kind.startswith("*")}
        aligned = frozenset(signature) - constants.keys() - unaligned - scalars
        return cls(function, signature, aligned, constants, **options)


def variants(
    targets: Sequence[str],
    elements: Sequence[str],
    head_dims: Sequence[int],
    groups: Sequence[int] = (3, 4),
    kept: str = "plain",
) -> Iterator[Variant]:
    """The cross product over all kernels, or those that see the cache where it is quantised. Group 3 is the
    demo model's, 4 that of many 8B models."""
    kernels = KERNELS if kept == "plain" else CACHE_KERNELS
    for kernel, target, element, head_dim, group in itertools.product(kernels, targets, elements, head_dims, groups):
        yield Variant(kernel, target, element, head_dim, group, kv_heads=3 if group == 3 else 8, kept=kept)


def compile_variant(variant: Variant) -> Usage:
    """Compile for the variant's target and read the registers, spills and shared memory off the result.

    Raises triton's own errors when it does not compile, and ValueError where the target has no fp8.
    """
    backend, architecture, warp_size, device = TARGETS[variant.target]
    if needs_fp8(variant.kept) and not device.has_fp8:
        raise ValueError(f"{variant.target} has no fp8: it needs sm_89 or newer, or gfx94 or newer")
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, compile

    source = source_of(variant)
    names = source.function.arg_names
    attributes = {(names.index(name),): [["tt.divisibility", 16]] for name in source.aligned}
    compiled = compile(
        ASTSource(source.function, dict(source.signature), dict(source.constants), attributes),
        target=GPUTarget(backend, architecture, warp_size),
        options={"num_warps": source.warps, "num_stages": source.stages, "enable_fp_fusion": True},
    )
    if backend == "cuda":
        assembly = compiled.asm["ptx"]
        registers, spilled = _cubin_usage(compiled.asm["cubin"])
    else:
        assembly = compiled.asm["amdgcn"]
        registers, spilled = _amdgcn_usage(assembly)
    return Usage(
        variant,
        registers,
        spilled,
        compiled.metadata.shared,
        matrix_instructions=len(re.findall(r"tcgen05\.mma\b|wgmma\.mma_async|mma\.sync|v_mfma_", assembly)),
        async_copies=len(re.findall(r"cp\.async\.c[ag]", assembly)),
    )


def needs_fp8(kept: str) -> bool:
    """Whether caches that are kept so hold float8."""
    return kept in KEPT and any(STORED[name][0] == "*fp8e4nv" for name in KEPT[kept])


def source_of(variant: Variant) -> Source:
    """What compile_variant compiles."""
    if variant.kernel in ELEMENTWISE_KERNELS:
        return _elementwise_source(variant)
    if variant.kernel != "kv_write":
        return _attention_source(variant)
    return _kv_write_source(variant) if variant.kept == "plain" else _quantised_write_source(variant)


def _quantised_write_source(variant: Variant) -> Source:
    from kvik_kernels.kv_write.kernel import kv_write_quantised_kernel

    tile = kv_write_launch.quantised_tile(variant.kv_heads, variant.head_dim)
    types = dict.fromkeys(("k_ptr", "v_ptr"), f"*{variant.element}")
    types |= _cache_types(variant, "k_cache_ptr", "v_cache_ptr") | {"slots_ptr": "*i64"}
    constants = _no_scales(variant) | {
        "KV_HEADS": variant.kv_heads,
        "HEAD_DIM": variant.head_dim,
        "BLOCK_TOKENS": BLOCK_TOKENS,
        "BLOCK_H": tile.block_h,
        "BLOCK_D": tile.block_d,
    }
    return Source.of(kv_write_quantised_kernel, types, {"slots_ptr"}, constants, warps=tile.warps, stages=1)


def _kept_parts(variant: Variant) -> Iterator[tuple[str, str, bool]]:
    """For keys, then values: the letter of their arguments, the type of their elements, whether they have scales."""
    for letter, name in zip("kv", KEPT.get(variant.kept, ("", "")), strict=True):
        yield letter, *STORED.get(name, (f"*{variant.element}", False))


def _cache_types(variant: Variant, keys: str, values: str) -> dict[str, str]:
    """Of the arguments of these names, and of their scales where there are some."""
    parts = list(_kept_parts(variant))
    types = {name: element for name, (_, element, _) in zip((keys, values), parts, strict=True)}
    return types | {f"{letter}_scale_ptr": "*i16" for letter, _, scaled in parts if scaled}


def _no_scales(variant: Variant) -> dict[str, None]:
    """The arguments of scales that there are none of."""
    absent = [letter for letter, _, scaled in _kept_parts(variant) if not scaled]
    fields = ("scale_ptr", "scale_block_stride", "scale_head_stride")
    return {f"{letter}_{field}": None for letter in absent for field in fields}


def _kv_write_source(variant: Variant) -> Source:
    from kvik_kernels.kv_write.kernel import kv_write_kernel

    tile = kv_write_launch.tile(variant.kv_heads, variant.head_dim)
    types = dict.fromkeys(("k_ptr", "v_ptr", "k_cache_ptr", "v_cache_ptr"), f"*{variant.element}")
    constants = {
        "KV_HEADS": variant.kv_heads,
        "HEAD_DIM": variant.head_dim,
        "BLOCK_TOKENS": BLOCK_TOKENS,
        "TILE": tile.elements,
    }
    types["slots_ptr"] = "*i64"
    return Source.of(kv_write_kernel, types, {"slots_ptr"}, constants, warps=tile.warps, stages=1)


def _elementwise_source(variant: Variant) -> Source:
    """The hidden state is as wide as all query heads; see FEED_FORWARD."""
    from kvik_kernels.rms_norm.kernel import rms_norm_kernel
    from kvik_kernels.rotary.kernel import rotary_kernel
    from kvik_kernels.swiglu.kernel import swiglu_kernel

    hidden = variant.kv_heads * variant.group * variant.head_dim
    element = f"*{variant.element}"
    if variant.kernel == "rotary":
        heads = variant.kv_heads * (variant.group + 1)
        turned = rotary_launch.tile(heads, variant.head_dim)
        constants: dict[str, Any] = {"HEADS": heads, "HALF": variant.head_dim // 2}
        constants |= {"BLOCK_H": turned.block_h, "BLOCK_P": turned.block_p}
        types = {"x_ptr": element, "cos_ptr": "*fp32", "sin_ptr": "*fp32"}
        return Source.of(rotary_kernel, types, set(), constants, warps=turned.warps, stages=1)
    if variant.kernel in ("swiglu", "geglu"):
        gated = gate_launch.tile(FEED_FORWARD * hidden)
        constants = {"WIDTH": FEED_FORWARD * hidden, "GELU": variant.kernel == "geglu", "TILE": gated.elements}
        types = {"out_ptr": element, "gate_up_ptr": element}
        return Source.of(swiglu_kernel, types, set(), constants, warps=gated.warps, stages=1)
    normed = norm_launch.tile(hidden)
    constants = {"WIDTH": hidden, "TILE": normed.elements}
    types = {"out_ptr": element, "x_ptr": "*fp32", "addend_ptr": element, "weight_ptr": "*fp32", "eps": "fp32"}
    if variant.kernel == "rms_norm":
        constants |= {"addend_ptr": None, "addend_row_stride": None}
    return Source.of(rms_norm_kernel, types, set(), constants, warps=normed.warps, stages=1)


def _attention_source(variant: Variant) -> Source:
    from kvik_kernels.paged_attention import kernel

    device = TARGETS[variant.target][3]
    shape = {
        "group": variant.group,
        "head_dim": variant.head_dim,
        "element_bytes": ELEMENTS[variant.element],
    }
    longest_query = {"prefill": 2048, "prefill_window": 2048, "prefill_short": 2}.get(variant.kernel)
    if longest_query is not None:
        tiles = attention_launch.prefill_tiles(device, **shape, max_query_len=longest_query)
    else:
        tiles = attention_launch.decode_tiles(device, **shape)
    function = {
        "prefill": kernel.prefill_kernel,
        "prefill_short": kernel.prefill_kernel,
        "prefill_window": kernel.prefill_kernel,
        "decode": kernel.decode_kernel,
        "decode_split": kernel.decode_kernel,
        "decode_window": kernel.decode_kernel,
        "reduce": kernel.reduce_kernel,
    }[variant.kernel]
    constants: dict[str, Any] = _no_scales(variant) | {
        "Q_HEADS": variant.kv_heads * variant.group,
        "KV_HEADS": variant.kv_heads,
        "GROUP": variant.group,
        "BLOCK_M": tiles.block_m,
        "BLOCK_Q": tiles.block_q,
        "BLOCK_TOKENS": BLOCK_TOKENS,
        "HEAD_DIM": variant.head_dim,
        "BLOCK_D": tiles.block_d,
        "TILE": tiles.tile,
        "MIN_SEGMENT": attention_launch.MIN_SEGMENT_TOKENS,
        "CHUNK": attention_launch.REDUCE_CHUNK,
        "SPLIT": variant.kernel in ("decode_split", "decode_window"),
        "WINDOW": WINDOW if variant.kernel in ("prefill_window", "decode_window") else 0,
        "PRECISION": "ieee",
    }
    types = dict.fromkeys(("out_ptr", "q_ptr"), f"*{variant.element}") | _cache_types(variant, "k_ptr", "v_ptr")
    types |= dict.fromkeys(("partial_ptr", "log_sum_ptr"), "*fp32")
    types |= dict.fromkeys(("table_ptr", "starts_ptr", "lens_ptr"), "*i32")
    types |= {"log2_scale": "fp32", "rows": "i32", "splits": "i32", "table_stride": "i32"}
    reduce = variant.kernel == "reduce"
    return Source.of(
        function,
        types,
        {"table_ptr", "starts_ptr", "lens_ptr"},
        constants,
        warps=attention_launch.REDUCE_WARPS if reduce else tiles.warps,
        stages=1 if reduce else tiles.stages,
    )


def _cubin_usage(cubin: bytes) -> tuple[int, int]:
    """Registers and spilled bytes from cuobjdump's line `REG:80 STACK:0 SHARED:0 LOCAL:0 ...`."""
    import triton

    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        text = subprocess.run([tool, "-res-usage", file.name], check=True, capture_output=True, text=True).stdout
    (usage,) = re.findall(r"REG:(\d+) STACK:(\d+) .*?LOCAL:(\d+)", text)
    registers, stack, local = map(int, usage)
    return registers, stack + local


def _amdgcn_usage(assembly: str) -> tuple[int, int]:
    """Vector registers and spilled bytes from the metadata at the end of the assembly.

    Scalar registers spill into lanes of vector registers, which are counted, and cost no memory.
    """
    fields = {name: int(value) for name, value in re.findall(r"\.(\w+):\s+(\d+)\s*$", assembly, re.MULTILINE)}
    return fields["vgpr_count"], 4 * fields["vgpr_spill_count"] + fields["private_segment_fixed_size"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Compile the variants asked for, one process each of `--jobs`; a line of JSON each, also for one that fails."""
    parser = argparse.ArgumentParser(prog="python -m kvik_kernels.aot", description=__doc__)
    parser.add_argument("--targets", nargs="+", choices=tuple(TARGETS), default=tuple(TARGETS))
    parser.add_argument("--elements", nargs="+", choices=tuple(ELEMENTS), default=("fp16", "bf16"))
    parser.add_argument("--head-dims", nargs="+", type=int, default=(64, 128))
    parser.add_argument("--groups", nargs="+", type=int, default=(3, 4))
    parser.add_argument("--kept", choices=("plain", *KEPT), default="plain")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args(arguments)
    import triton

    wanted = list(variants(options.targets, options.elements, options.head_dims, options.groups, options.kept))
    failed = False
    for variant, result in compile_all(wanted, options.jobs):
        failed |= isinstance(result, str)
        fields = {"error": result} if isinstance(result, str) else asdict(result)
        print(json.dumps({**fields, "variant": asdict(variant), "triton": triton.__version__}), flush=True)
    return 1 if failed else 0


def compile_all(wanted: Sequence[Variant], jobs: int) -> Iterator[tuple[Variant, Usage | str]]:
    """Compile in `jobs` processes; gives what each variant takes, or why it does not compile."""
    # Spawned, not forked: the caller may have started a GPU, or imported the kernels for the interpreter.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context, initializer=_leave_interpreter) as pool:
        yield from zip(wanted, pool.map(_compile_or_explain, wanted), strict=True)


def _leave_interpreter() -> None:
    os.environ.pop("TRITON_INTERPRET", None)


def _compile_or_explain(variant: Variant) -> Usage | str:
    try:
        return compile_variant(variant)
    except Exception as error:  # triton raises its own, LLVM's and ptxas's errors; each ends one variant only
        return f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    sys.exit(main())
