"""The engine's runner with the Triton kernels, on the shape of the demo model, against its reference attention."""

import pytest

from bench.gpu_check.model_check import compare_backends

pytestmark = pytest.mark.timeout(600)


def test_greedy_tokens_through_the_kernels_equal_the_reference() -> None:
    """What `bench/gpu_check.sh` does on a GPU with all 30 layers, here with one in the interpreter."""
    assert compare_backends("cpu", layers=1)["tokens"] == 48
