"""Which values of a row of logits its filters keep."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

from kvik_kernels.checks import require_all_fit
from kvik_kernels.cpu import structs
from kvik_kernels.cpu.library import InstructionSet, Library

if TYPE_CHECKING:
    import torch


class Filters:
    """The calls for one instruction set, on the caller's thread.

    `values` is always float32 `[count]` without NaN and +infinity, and `top` the largest of them, finite. Each raises
    TypeError or ValueError for a tensor that does not fit, naming it.
    """

    def __init__(self, library: Library, instruction_set: InstructionSet | None = None) -> None:
        self._functions = library.functions
        self._set = instruction_set or library.best

    def mass(self, values: torch.Tensor, top: float) -> float:
        """The sum of exp(value - top)."""
        import torch

        require_all_fit(torch.float32, ("values", values, (None,)))
        mass: float = self._functions.kvik_mass(self._set, values.data_ptr(), len(values), top)
        return mass

    def floor_of_share(self, values: torch.Tensor, top: float, share: float) -> float:
        """A floor that the fewest of the largest values reach whose mass is `share` (0 to 1) of that of all."""
        return self._floor(values, top, share, by_mass=True)

    def floor_of_count(self, values: torch.Tensor, top: float, count: int) -> float:
        """A floor that the `count` largest values reach, those equal to the last of them, and no other: all but those
        of -infinity where there are fewer. count: 1 or more."""
        return self._floor(values, top, count, by_mass=False)

    def _floor(self, values: torch.Tensor, top: float, enough: float, *, by_mass: bool) -> float:
        import torch

        require_all_fit(torch.float32, ("values", values, (None,)))
        scratch = torch.empty_like(values)
        call = structs.Floor(values.data_ptr(), len(values), scratch.data_ptr(), enough, top, by_mass)
        floor: float = self._functions.kvik_floor(self._set, ctypes.byref(call))
        return floor

    def at_least(
        self, values: torch.Tensor, tokens: torch.Tensor | None, floor: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """tokens: int64 `[count]`, or 0, 1, 2, ... when None. Those of the values that are at least the floor, and
        their values, in the order in which they are: (values, tokens)."""
        import torch

        require_all_fit(torch.float32, ("values", values, (None,)))
        if tokens is not None:
            require_all_fit(torch.int64, ("tokens", tokens, (len(values),)))
        kept_values, kept_tokens = torch.empty_like(values), torch.empty(len(values), dtype=torch.int64)
        call = structs.Kept(
            values.data_ptr(),
            None if tokens is None else tokens.data_ptr(),
            len(values),
            kept_values.data_ptr(),
            kept_tokens.data_ptr(),
            floor,
        )
        kept = self._functions.kvik_keep(self._set, ctypes.byref(call))
        return kept_values[:kept], kept_tokens[:kept]
