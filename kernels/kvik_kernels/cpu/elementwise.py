"""What a layer does between its products: the norm, the rotation and the gate, each in one call."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvik_kernels.activation import Activation
from kvik_kernels.checks import require_all_fit
from kvik_kernels.cpu.library import DTYPES, InstructionSet, Kernel, Library
from kvik_kernels.cpu.structs import Gate, Norm, Rotation

if TYPE_CHECKING:
    import torch

LANES = 16
"""Widths are computed in whole registers."""
ONE_THREAD_ELEMENTS = 1 << 15
"""Elements below which waking a second thread takes longer than it saves."""


class Elementwise:
    """The calls for one instruction set and number of threads. Results depend neither on threads nor on other rows.

    Each raises TypeError or ValueError for an argument that does not fit, naming it; so does a width that is no
    multiple of LANES.
    """

    def __init__(self, library: Library, *, threads: int, instruction_set: InstructionSet | None = None) -> None:
        self._library = library
        self._set = instruction_set or library.best
        self._threads = threads

    def rms_norm(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        epsilon: float,
        dtype: torch.dtype,
        *,
        addend: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """x: float32 `[rows, width]`, contiguous; weight: float32 `[width]`. Returns `[rows, width]` of `dtype`.
        `addend`, as x but of `dtype`, is added to x in place before."""
        import torch

        _require_served(dtype)
        width = x.shape[-1]
        require_all_fit(torch.float32, ("x", x, (None, width)), ("weight", weight, (width,)))
        rows = x.shape[0]
        _require_whole("x", x, width)
        if addend is not None:
            require_all_fit(dtype, ("addend", addend, (rows, width)))
            _require_whole("addend", addend, width)
        out = torch.empty((rows, width), dtype=dtype)
        call = Norm(
            x.data_ptr(),
            None if addend is None else addend.data_ptr(),
            weight.data_ptr(),
            out.data_ptr(),
            DTYPES[str(dtype)],
            rows,
            width,
            self._threads_for(x),
            epsilon,
        )
        self._library.run(Kernel.NORM, self._set, call)
        return out

    def rotate(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """x: `[tokens, heads, 2 half]`, by any strides of tokens and heads; cos, sin: float32 `[tokens, 1, half]`,
        contiguous. Turns pairs (i, i + half) in place and returns x."""
        import torch

        tokens, heads, width = x.shape
        _require_served(x.dtype)
        require_all_fit(x.dtype, ("x", x, (tokens, heads, width)))
        half = width // 2
        require_all_fit(torch.float32, ("cos", cos, (tokens, 1, half)), ("sin", sin, (tokens, 1, half)))
        if width % 2 or half % LANES:
            raise ValueError(f"x: heads of {width} are not served")
        _require_whole("cos", cos, half)
        _require_whole("sin", sin, half)
        call = Rotation(
            x.data_ptr(),
            DTYPES[str(x.dtype)],
            x.stride(0),
            x.stride(1),
            tokens,
            heads,
            half,
            cos.data_ptr(),
            sin.data_ptr(),
            self._threads_for(x),
        )
        self._library.run(Kernel.ROTATE, self._set, call)
        return x

    def gate(self, gate_up: torch.Tensor, activation: Activation) -> torch.Tensor:
        """gate_up: `[rows, 2 width]`, contiguous. Returns activation(gate) * up, `[rows, width]`."""
        import torch

        _require_served(gate_up.dtype)
        require_all_fit(gate_up.dtype, ("gate_up", gate_up, (None, gate_up.shape[-1])))
        rows, both = gate_up.shape
        width = both // 2
        _require_whole("gate_up", gate_up, width)
        if both % 2:
            raise ValueError(f"gate_up: {both} elements are no two halves")
        out = torch.empty((rows, width), dtype=gate_up.dtype)
        call = Gate(
            gate_up.data_ptr(),
            out.data_ptr(),
            DTYPES[str(out.dtype)],
            activation,
            rows,
            width,
            self._threads_for(out),
        )
        self._library.run(Kernel.GATE, self._set, call)
        return out

    def _threads_for(self, x: torch.Tensor) -> int:
        return self._threads if x.numel() > ONE_THREAD_ELEMENTS else 1


def serves(width: int, dtype: torch.dtype) -> bool:
    """Whether rows of so many elements are computed here; of a head, its half."""
    return str(dtype) in DTYPES and width > 0 and width % LANES == 0


def _require_served(dtype: torch.dtype) -> None:
    if str(dtype) not in DTYPES:
        raise TypeError(f"dtype: expected one of {', '.join(DTYPES)}, got {dtype}")


def _require_whole(name: str, tensor: torch.Tensor, width: int) -> None:
    if width % LANES:
        raise ValueError(f"{name}: rows of {width} are not served, {LANES} and multiples are")
    if not tensor.is_contiguous():
        raise ValueError(f"{name}: must be contiguous")
