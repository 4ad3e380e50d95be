"""Kernels run on CPU tensors in Triton's interpreter, which is chosen when a kernel module is first imported."""

import os
from collections.abc import Iterator

import pytest

os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture(autouse=True, scope="session")
def interpreted_kernels() -> None:
    """Refuse to go on when a test of this process imported a kernel for a GPU before."""
    from triton.runtime.interpreter import InterpretedFunction

    from kvik_kernels.kv_write.kernel import kv_write_kernel

    assert isinstance(kv_write_kernel, InterpretedFunction), "run tests/kernels in a process of its own"


@pytest.fixture(autouse=True)
def nan_outputs() -> Iterator[None]:
    from kvik_kernels.testing import nan_filled_outputs

    with nan_filled_outputs():
        yield
