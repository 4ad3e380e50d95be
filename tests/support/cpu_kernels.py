"""Which CPU kernels can be tried here. On a CPU that they are not written for their tests are skipped, with the reason;
where they are only not built, importing this fails."""

from __future__ import annotations

import pytest

from kvik_kernels.cpu.library import CpuNotServed, InstructionSet, load_library


def _sets() -> tuple[list[InstructionSet], str]:
    try:
        best = load_library().best
    except CpuNotServed as reason:
        return [], str(reason)
    return [each for each in InstructionSet if each <= best], ""


SETS, _REASON = _sets()
needs_kernels = pytest.mark.skipif(not SETS, reason=f"no CPU kernels: {_REASON}")
