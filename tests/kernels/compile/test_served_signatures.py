"""What aot compiles, measures and tables is what a launch by the engine compiles, and no batch makes another kernel."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kvik_kernels import aot

pytestmark = pytest.mark.timeout(600)

SCRIPT = Path(__file__).with_name("served_signatures.py")


@pytest.fixture(scope="module")
def lines() -> list[dict[str, Any]]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TRITON_")}
    done = subprocess.run([sys.executable, SCRIPT], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_serving_launches_the_kernels_that_aot_compiles(lines: list[dict[str, Any]]) -> None:
    """Same types, alignment, constants and options; a difference would be another kernel, with other registers."""
    quantised = sum(
        device.has_fp8 or not aot.needs_fp8(kept) for *_, device in aot.TARGETS.values() for kept in aot.KEPT
    )
    assert len(lines) - 1 == len(aot.TARGETS) * 3 * len(aot.KERNELS) + quantised * len(aot.CACHE_KERNELS)
    for line in lines[:-1]:
        assert line["served"] == line["aot"], line["variant"]


def test_no_batch_size_or_length_makes_triton_compile_another_kernel(lines: list[dict[str, Any]]) -> None:
    """A compilation while requests wait costs a second; rows, tokens, splits and table widths are not specialised."""
    distinct = lines[-1]["distinct"]
    # Prefill has tiles for short and for long queries; decode is split or not; norms add or not; gates are two.
    assert distinct == {
        "kv_write_kernel": 1,
        "prefill_kernel": 2,
        "decode_kernel": 2,
        "reduce_kernel": 1,
        "rms_norm_kernel": 2,
        "rotary_kernel": 1,
        "swiglu_kernel": 2,
    }
