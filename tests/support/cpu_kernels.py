"""Which CPU kernels can be tried here. On a CPU that they are not written for their tests are skipped, with the reason;
where they are only not built, those tests run and fail."""

from __future__ import annotations

import platform

import pytest

from kvik_kernels.cpu.build import find_compiler
from kvik_kernels.cpu.library import ARCHITECTURES, CpuNotServed, InstructionSet, LibraryUnavailable, load_library


def usable_sets() -> tuple[list[InstructionSet], str]:
    """The instruction sets to try, and why there are none."""
    try:
        best = load_library().best
    except CpuNotServed as reason:
        return [], str(reason)
    except LibraryUnavailable:
        # Not raised here: that would end the collection of every test.
        return [InstructionSet.AVX2], ""
    return [each for each in InstructionSet if each <= best], ""


SETS, _REASON = usable_sets()
needs_kernels = pytest.mark.skipif(not SETS, reason=f"no CPU kernels: {_REASON}")
needs_compiler = pytest.mark.skipif(
    platform.machine() not in ARCHITECTURES or find_compiler() is None, reason="no C++ compiler for the CPU kernels"
)
