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

FOLDER = Path(__file__).parent
SOURCES = ("queries.h", "vectors_avx2.h", "vectors_avx512.h", "attention.cpp", "write.cpp", "library.cpp", "build.py")


DTYPES = {"torch.float32": 0, "torch.float16": 1, "torch.bfloat16": 2}
"""`enum Dtype` of queries.h."""


class LibraryUnavailable(Exception):
    """There is no library that this CPU runs; the message says why."""


class CpuNotServed(LibraryUnavailable):
    """This CPU is none that the kernels are written for."""


class InstructionSet(IntEnum):
    """What the kernels are built for. Each has the ones before it."""

    AVX2 = 1
    AVX512 = 2
    AVX512_BF16 = 3


def library_path() -> Path:
    """Where the library of these sources is, once it is built."""
    digest = hashlib.sha256()
    for name in SOURCES:
        digest.update((FOLDER / name).read_bytes())
    return FOLDER / "built" / f"kvik_cpu-{digest.hexdigest()[:16]}.so"


@dataclass(frozen=True, slots=True)
class Library:
    """The loaded library, as this process uses it."""

    functions: ctypes.CDLL
    best: InstructionSet
    """The last set that this CPU and its system have."""
    parallel: int | None
    """The address of GOMP_parallel in the OpenMP runtime that torch has loaded; None: kernels run on one thread."""


@functools.cache
def load_library() -> Library:
    """Load the library once for this process, after torch. Raises LibraryUnavailable."""
    if platform.machine() not in ("x86_64", "AMD64"):
        raise CpuNotServed(f"none are written for {platform.machine()}")
    path = library_path()
    if not path.exists():
        raise LibraryUnavailable("they are not built (python -m kvik_kernels.cpu.build does)")
    try:
        functions = ctypes.CDLL(str(path))
    except OSError as error:
        raise LibraryUnavailable(f"they cannot be loaded: {error}") from error
    functions.kvik_instruction_set.restype = ctypes.c_int
    functions.kvik_attend.restype = None
    functions.kvik_attend.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
    functions.kvik_write.restype = None
    functions.kvik_write.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
    best = functions.kvik_instruction_set()
    if best == 0:
        raise CpuNotServed("this CPU has no AVX2")
    return Library(functions, InstructionSet(best), _openmp_parallel())


def _openmp_parallel() -> int | None:
    """Found among what is mapped, for a library of the same name elsewhere would bring threads of its own."""
    import torch  # noqa: F401

    for line in Path("/proc/self/maps").read_text().splitlines():
        path = Path(line.partition("/")[1] + line.partition("/")[2])
        if path.name.startswith(("libgomp", "libiomp5", "libomp")) and path.exists():
            runtime = ctypes.CDLL(str(path))
            return ctypes.cast(runtime.GOMP_parallel, ctypes.c_void_p).value
    return None
