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
from pathlib import Path

from kvik_kernels.cpu.library import FOLDER, library_path

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
ATTENTION = {"attend_avx2": AVX2, "attend_avx512": AVX512, "attend_avx512_bf16": (*AVX512, "-mavx512bf16")}
"""By the function that the file makes, what it may use. What calls them is built for any x86-64."""


def build(compiler: str) -> Path:
    """Compile and link, and put the library in its place whole.

    Raises subprocess.CalledProcessError, with what the compiler said.
    """
    target = library_path()
    target.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        objects = [_compile(compiler, f"{name}.cpp", Path(scratch, f"{name}.o"), ()) for name in ("library", "write")]
        for function, flags in ATTENTION.items():
            output = Path(scratch, f"{function}.o")
            objects.append(_compile(compiler, "attention.cpp", output, (*flags, f"-DKVIK_ISA={function}")))
        linked = Path(scratch, target.name)
        # No C++ library is used: the result needs libc alone.
        _run(compiler, "-shared", "-nodefaultlibs", "-o", str(linked), *objects, "-lgcc", "-lc")
        os.replace(linked, target)
    for stale in target.parent.glob("*.so"):
        if stale != target:
            stale.unlink()
    return target


def _compile(compiler: str, source: str, output: Path, flags: tuple[str, ...]) -> str:
    _run(compiler, *FLAGS, *flags, "-c", str(FOLDER / source), "-o", str(output))
    return str(output)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)


def main() -> int:
    if platform.machine() not in ("x86_64", "AMD64"):
        print(f"CPU kernels: none are written for {platform.machine()}; torch computes", file=sys.stderr)
        return 0
    if library_path().exists():
        return 0
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        print("CPU kernels: no C++ compiler (Debian's package g++) is here", file=sys.stderr)
        return 1
    try:
        build(compiler)
    except subprocess.CalledProcessError as error:
        print(f"CPU kernels: the build failed\n{error.stderr}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
