"""Swap space: memory of the host that whole KV blocks are copied to and from, one region a block.

Copies run in the order of the step's other work: on a GPU on its stream, from and to pinned memory, without stopping
the host; on a CPU at once.
"""

from __future__ import annotations

import mmap
import time
from collections.abc import Sequence

import torch
from torch import Tensor

from kvik_engine.errors import StartError, StartReason
from kvik_engine.step import BlockId, HostSlot, HostSpace, SwapIn, SwapOut

_MEASURED_BYTES = 64 << 20
_MEASUREMENTS = 5


class HostMemory:
    """`slots` regions of a block's size. `blocks` is the device's pool as bytes, [blocks, block bytes], contiguous."""

    def __init__(self, blocks: Tensor, slots: int) -> None:
        self._blocks = blocks
        self._size = slots * blocks.shape[1]
        # Anonymous pages: on a CPU they take memory only once they are written.
        self._pages = mmap.mmap(-1, self._size)
        self._slots = torch.frombuffer(self._pages, dtype=torch.uint8).view(slots, blocks.shape[1])
        if blocks.device.type == "cuda":
            self._pin()

    def swap_out(self, copies: Sequence[SwapOut]) -> None:
        for copy in copies:
            self._slots[copy.slot].copy_(self._blocks[copy.block], non_blocking=True)

    def swap_in(self, copies: Sequence[SwapIn]) -> None:
        for copy in copies:
            self._blocks[copy.block].copy_(self._slots[copy.slot], non_blocking=True)

    def measure(self) -> HostSpace:
        """Copy some blocks out and in again, which changes no block. Before the first step."""
        count = max(1, min(len(self._slots), len(self._blocks), _MEASURED_BYTES // self._blocks.shape[1]))
        outs = [SwapOut(BlockId(number), HostSlot(number)) for number in range(count)]
        ins = [SwapIn(copy.slot, copy.block) for copy in outs]
        best = float("inf")
        for _ in range(_MEASUREMENTS):
            started = time.perf_counter()
            self.swap_out(outs)
            self.swap_in(ins)
            if self._blocks.device.type == "cuda":
                torch.cuda.synchronize(self._blocks.device)
            best = min(best, time.perf_counter() - started)
        copied = 2 * count * self._blocks.shape[1]
        return HostSpace(bytes=self._size, copy_bytes_per_second=copied / best, memory=memoryview(self._pages))

    def _pin(self) -> None:
        """Lock the pages, so that the device copies by itself. torch's own pinned memory would round up the size."""
        error = torch.cuda.cudart().cudaHostRegister(self._slots.data_ptr(), self._size, 0)
        if int(error) != 0:
            raise StartError(
                StartReason.INSUFFICIENT_MEMORY,
                f"--swap-space: {self._size >> 20} MiB of pinned host memory cannot be had ({error})",
            )
