"""Which tokens can win a draw, by the upper bits of their noise."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

from kvik_kernels.checks import require_all_fit
from kvik_kernels.cpu import structs
from kvik_kernels.cpu.library import InstructionSet, Library

if TYPE_CHECKING:
    import torch


class Screen:
    """The call for one instruction set, on the caller's thread."""

    def __init__(self, library: Library, instruction_set: InstructionSet | None = None) -> None:
        self._functions = library.functions
        self._set = instruction_set or library.best

    def places(
        self,
        values: torch.Tensor,
        tokens: torch.Tensor | None,
        *,
        key: int,
        top: float,
        factor: float,
        slack: float,
    ) -> torch.Tensor:
        """values: float32 `[count]`; tokens: int64 `[count]`, or 0, 1, 2, ... when None. Returns the places, int64 and
        rising, at which the upper 32 bits of 1 - u are at most exp(value - top) * factor + slack, with u the uniform of
        output `token` of the SplitMix64 stream that starts at `key`.

        Raises TypeError or ValueError for an argument that does not fit, naming it.
        """
        import torch

        require_all_fit(torch.float32, ("values", values, (None,)))
        if tokens is not None:
            require_all_fit(torch.int64, ("tokens", tokens, (len(values),)))
        places = torch.empty(len(values), dtype=torch.int64)
        call = structs.Screen(
            values.data_ptr(),
            None if tokens is None else tokens.data_ptr(),
            len(values),
            places.data_ptr(),
            key & ((1 << 64) - 1),
            top,
            factor,
            slack,
        )
        return places[: self._functions.kvik_screen(self._set, ctypes.byref(call))]
