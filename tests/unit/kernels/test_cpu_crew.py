"""The threads of the CPU kernels."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import Tensor

from kvik_kernels.activation import Activation
from kvik_kernels.cpu.elementwise import ONE_THREAD_ELEMENTS, Elementwise
from kvik_kernels.cpu.library import load_library
from tests.support.cpu_kernels import SETS
from tests.support.waiting import wait_until

pytestmark = pytest.mark.skipif(not SETS, reason="this CPU runs no kernel")

WIDTH = 64
ROWS = 4 * ONE_THREAD_ELEMENTS // WIDTH


def draw(seed: int) -> Tensor:
    return torch.randn(ROWS, 2 * WIDTH, generator=torch.Generator().manual_seed(seed))


def gate(x: Tensor, threads: int) -> Tensor:
    return Elementwise(load_library(), threads=threads).gate(x, Activation.SILU)


def members() -> dict[str, str]:
    """The state of each thread of the crew, by its id."""
    found = {}
    for task in Path("/proc/self/task").iterdir():
        name, _, state = (task / "stat").read_text().partition("(")[2].rpartition(")")
        if name == "kvik-crew":
            found[task.name] = state.split()[0]
    return found


def test_a_call_hires_the_threads_that_it_may_have_and_the_next_ones_keep_them() -> None:
    gate(draw(0), threads=3)
    hired = members()
    for seed in range(20):
        gate(draw(seed), threads=3)

    assert len(hired) >= 2
    assert members().keys() == hired.keys()


def test_threads_that_find_no_work_go_to_sleep() -> None:
    gate(draw(0), threads=2)

    wait_until(lambda: set(members().values()) == {"S"})


def test_calls_of_many_threads_at_once_are_each_computed_whole() -> None:
    """Only one of them has the crew."""
    cases = [draw(seed) for seed in range(8)]
    wanted = [gate(x, threads=1) for x in cases]

    with ThreadPoolExecutor(4) as callers:
        for _ in range(10):
            got = list(callers.map(lambda x: gate(x, threads=3), cases))
            assert all(map(torch.equal, got, wanted))
