"""Builds the CPU kernels: `python -m kvik_kernels.cpu.build`. Does nothing where they are built, or cannot be.

The standard library only: an image's build stage has no torch.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from itertools import product
from pathlib import Path

from kvik_kernels.cpu.library import ARCHITECTURES, FOLDER, SOURCES, library_path

FLAGS = (
    "-std=c++17",
    "-O3",
    "-fPIC",
    "-fvisibility=hidden",
    "-fno-exceptions",
    "-fno-rtti",
    "-Wall",
    "-Wextra",
    # GCC 12 warns so of its own AVX512 headers.
    "-Wno-uninitialized",
    "-Wno-maybe-uninitialized",
)
AVX2 = ("-mavx2", "-mfma", "-mf16c")
AVX512 = (*AVX2, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl")
AVX512_BF16 = (*AVX512, "-mavx512bf16")
AVX512_VNNI = (*AVX512, "-mavx512vnni")
ATTENTION = {"attend_avx2": AVX2, "attend_avx512": AVX512, "attend_avx512_bf16": AVX512_BF16}
"""By the function that the file makes, what it may use. What calls them is built for any x86-64."""
BOTH = {"avx2": AVX2, "avx512": AVX512}
"""By the ending of the functions' names."""


def find_compiler() -> str | None:
    """The C++ compiler that is taken, where there is one."""
    return shutil.which("g++") or shutil.which("clang++")


def build(compiler: str) -> Path:
    """Compile and link copies of the sources, so that the name fits whatever is edited meanwhile, and put the library
    in its place whole.

    Raises OSError, and subprocess.CalledProcessError with what the compiler said.
    """
    built = FOLDER / "built"
    built.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=built) as folder:
        scratch = Path(folder)
        for source in SOURCES:
            shutil.copy(FOLDER / source, scratch)
        target = library_path(scratch)
        objects = [_compile(compiler, scratch, source, source, ()) for source in ("library", "write", "checks", "crew")]
        for function, flags in ATTENTION.items():
            objects.append(_compile(compiler, scratch, "attention", function, (*flags, f"-DKVIK_ISA={function}")))
        for source, (isa, flags) in product(("elementwise", "filters", "screen"), BOTH.items()):
            objects.append(_compile(compiler, scratch, source, f"{source}_{isa}", (*flags, f"-DKVIK_ISA={isa}")))
        objects.append(_compile(compiler, scratch, "products", "products", AVX512_BF16))
        objects.append(_compile(compiler, scratch, "products_int8", "products_int8", AVX512_VNNI))
        linked = scratch / target.name
        # No C++ library is used: the result needs libc alone.
        _run(compiler, "-shared", "-nodefaultlibs", "-o", str(linked), *objects, "-lgcc", "-lc")
        os.replace(linked, target)
    for stale in built.glob("*.so"):
        if stale != target:
            # Another build beside this one may have done it.
            stale.unlink(missing_ok=True)
    return target


def _compile(compiler: str, scratch: Path, source: str, name: str, flags: tuple[str, ...]) -> str:
    output = str(scratch / f"{name}.o")
    _run(compiler, *FLAGS, *flags, "-c", str(scratch / f"{source}.cpp"), "-o", output)
    return output


def _run(*command: str) -> None:
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    if done.stderr:
        print(done.stderr, end="", file=sys.stderr)


def main() -> int:
    if platform.machine() not in ARCHITECTURES:
        print(f"CPU kernels: none are written for {platform.machine()}; torch computes", file=sys.stderr)
        return 0
    if library_path().exists():
        return 0
    compiler = find_compiler()
    if compiler is None:
        print("CPU kernels: no C++ compiler (Debian's package g++) is here", file=sys.stderr)
        return 1
    try:
        build(compiler)
    except subprocess.CalledProcessError as error:
        print(f"CPU kernels: the build failed\n{error.stderr}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"CPU kernels: the build failed: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
