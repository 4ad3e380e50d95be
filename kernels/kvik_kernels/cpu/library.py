"""The compiled kernels: where the library lies, whether this CPU runs it, and its functions through ctypes.

Built into a folder beside the sources by `kvik_kernels.cpu.build`, at set-up or while an image is built, never where
models are served. Its name holds a hash of all that it is made from, so a library of other sources is never found.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import platform
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Protocol

from kvik_kernels.cpu import structs

FOLDER = Path(__file__).parent
SOURCES = (
    "queries.h",
    "products.h",
    "products_int8.h",
    "calls.h",
    "crew.h",
    "crew.cpp",
    "elementwise.h",
    "screen.h",
    "filters.h",
    "masses.h",
    "arithmetic.h",
    "vectors_avx2.h",
    "vectors_avx512.h",
    "widen.h",
    "attention.cpp",
    "write.cpp",
    "products.cpp",
    "products_int8.cpp",
    "elementwise.cpp",
    "screen.cpp",
    "filters.cpp",
    "checks.cpp",
    "library.cpp",
    "build.py",
)

ARCHITECTURES = ("x86_64", "AMD64")
DTYPES = {"torch.float32": 0, "torch.float16": 1, "torch.bfloat16": 2}
"""What is computed in: `enum Dtype` of queries.h."""
STORED = {**DTYPES, "torch.int8": 3, "torch.float8_e4m3fn": 4, "torch.uint8": 5}
"""What a cache may keep: that, or quantised."""


class LibraryUnavailable(Exception):
    """There is no library that this CPU runs; the message says why."""


class CpuNotServed(LibraryUnavailable):
    """This CPU is none that the kernels are written for."""


class InstructionSet(IntEnum):
    """What the kernels are built for. Each has the ones before it."""

    AVX2 = 1
    AVX512 = 2
    AVX512_BF16 = 3


def library_path(sources: Path | None = None) -> Path:
    """Where the library of these sources is, once it is built: of those beside this file when None."""
    digest = hashlib.sha256()
    for name in SOURCES:
        digest.update(((sources or FOLDER) / name).read_bytes())
    return FOLDER / "built" / f"kvik_cpu-{digest.hexdigest()[:16]}.so"


class Kernel(IntEnum):
    """What a forward pass is made of: `enum Kernel` of calls.h."""

    NORM = 0
    ROTATE = 1
    GATE = 2
    MULTIPLY = 3
    MULTIPLY_INT8 = 4
    WRITE = 5
    ATTEND = 6


class Recorder(Protocol):
    """Is told of each call of a kernel."""

    def note(
        self,
        kernel: Kernel,
        instruction_set: InstructionSet,
        arguments: ctypes.Structure,
        step: ctypes.Structure | None,
    ) -> None:
        """`arguments` may be changed after the call."""
        ...


@dataclass(slots=True)
class Library:
    """The loaded library, as this process uses it."""

    functions: ctypes.CDLL
    best: InstructionSet
    """The last set that this CPU and its system have."""
    multiplies_bytes: bool
    """Whether there are AVX512's products of bytes (VNNI), too."""
    recorder: Recorder | None = None
    """Who is told of the calls that are made meanwhile."""

    def run(
        self,
        kernel: Kernel,
        instruction_set: InstructionSet,
        arguments: ctypes.Structure,
        step: ctypes.Structure | None = None,
    ) -> None:
        """Call a kernel. `step`: what is the same in all layers."""
        shared = None if step is None else ctypes.addressof(step)
        call = structs.Call(kernel, instruction_set, shared, ctypes.addressof(arguments))
        self.functions.kvik_run(ctypes.byref(call))
        if self.recorder is not None:
            self.recorder.note(kernel, instruction_set, arguments, step)


@functools.cache
def load_library() -> Library:
    """Load the library once for this process. Raises LibraryUnavailable."""
    if platform.machine() not in ARCHITECTURES:
        raise CpuNotServed(f"none are written for {platform.machine()}")
    path = library_path()
    if not path.exists():
        raise LibraryUnavailable("they are not built (python -m kvik_kernels.cpu.build does)")
    try:
        functions = ctypes.CDLL(str(path))
    except OSError as error:
        raise LibraryUnavailable(f"they cannot be loaded: {error}") from error
    _require_equal_structs(functions)
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    functions.kvik_instruction_set.restype = ctypes.c_int
    functions.kvik_run.restype = None
    functions.kvik_run.argtypes = (pointer,)
    functions.kvik_run_all.restype = None
    functions.kvik_run_all.argtypes = (pointer, number)
    functions.kvik_mass.restype = ctypes.c_double
    functions.kvik_mass.argtypes = (ctypes.c_int, pointer, number, ctypes.c_float)
    functions.kvik_floor.restype = ctypes.c_float
    functions.kvik_floor.argtypes = (ctypes.c_int, pointer)
    for name in ("kvik_keep", "kvik_screen"):
        getattr(functions, name).restype = ctypes.c_int64
        getattr(functions, name).argtypes = (ctypes.c_int, pointer)
    functions.kvik_multiplies_bytes.restype = ctypes.c_int
    functions.kvik_queries_that_fit.restype = ctypes.c_int64
    functions.kvik_queries_that_fit.argtypes = (pointer, number, pointer, number, number, number, number, number)
    functions.kvik_slots_that_fit.restype = ctypes.c_int64
    functions.kvik_slots_that_fit.argtypes = (pointer, number, number)
    best = functions.kvik_instruction_set()
    if best == 0:
        raise CpuNotServed("this CPU has no AVX2")
    return Library(functions, InstructionSet(best), bool(functions.kvik_multiplies_bytes()))


def _require_equal_structs(functions: ctypes.CDLL) -> None:
    """Where structs.py and the headers differ, the kernels would read and write what is not theirs."""
    own = structs.sizes()
    told = (ctypes.c_int64 * len(own))()
    functions.kvik_sizes(told)
    odd = [name for (name, size), there in zip(own.items(), told, strict=True) if size != there]
    if odd:
        raise LibraryUnavailable(f"structs.py and the headers differ in {', '.join(odd)}")
