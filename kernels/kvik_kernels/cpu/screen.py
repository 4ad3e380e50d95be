"""The masses of a row of logits, and which tokens can win a draw, by the upper bits of their noise."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

from kvik_kernels.checks import require_dtype, require_shape, require_unit_stride
from kvik_kernels.cpu import structs
from kvik_kernels.cpu.library import InstructionSet, Library

if TYPE_CHECKING:
    import torch


class Screen:
    """The calls for one instruction set, on the caller's thread.

    Each raises TypeError or ValueError for an argument that does not fit, naming it.
    """

    def __init__(self, library: Library, instruction_set: InstructionSet | None = None) -> None:
        self._functions = library.functions
        self._set = instruction_set or library.best

    def masses(self, values: torch.Tensor, top: float, floors: torch.Tensor) -> torch.Tensor:
        """values: float32 `[count]`; top: about the largest, finite; floors: float32 `[steps]`. Returns float64
        `[steps]`: the sum of exp(value - top) over the values that are at least each floor."""
        import torch

        _require_vector("values", values, torch.float32, None)
        _require_vector("floors", floors, torch.float32, None)
        out = torch.empty(len(floors), dtype=torch.float64)
        self._functions.kvik_masses(
            self._set, values.data_ptr(), len(values), top, floors.data_ptr(), len(floors), out.data_ptr()
        )
        return out

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
        output `token` of the SplitMix64 stream that starts at `key`."""
        import torch

        _require_vector("values", values, torch.float32, None)
        if tokens is not None:
            _require_vector("tokens", tokens, torch.int64, len(values))
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


def _require_vector(name: str, tensor: torch.Tensor, dtype: torch.dtype, length: int | None) -> None:
    require_shape(name, tensor, (length,))
    require_dtype(name, tensor, dtype)
    require_unit_stride(name, tensor)
