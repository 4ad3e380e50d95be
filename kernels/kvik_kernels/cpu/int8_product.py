"""Products with one weight, which is kept in int8 with a scale for each output."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvik_kernels.checks import require_all_fit, require_dtype, require_shape
from kvik_kernels.cpu.library import DTYPES, Kernel, Library
from kvik_kernels.cpu.product import ONE_THREAD_ELEMENTS
from kvik_kernels.cpu.structs import PANEL_OUTPUTS, Int8Product

if TYPE_CHECKING:
    import torch

MOST_INPUTS = 65536
"""Sums of so many products of bytes stay whole numbers of 32 bits."""
_LANES = 16
_QUAD = 4
_SLAB = 1024
"""Outputs whose weights are in fp32 at once while they are rounded."""


class Int8Weight:
    """W `[outputs, inputs]`, rounded to int8, and its products: y = x W^T + b. One thread at a time may use it."""

    def __init__(self, library: Library, weight: torch.Tensor) -> None:
        """weight: float32 or bfloat16 `[outputs, inputs]`, of which rounded ones are kept. Raises TypeError or
        ValueError for one that is not served, and on a CPU without AVX512's products of bytes."""
        import torch

        require_shape("weight", weight, (None, None))
        require_dtype("weight", weight, torch.float32, torch.bfloat16)
        if not library.multiplies_bytes or not 0 < weight.shape[1] <= MOST_INPUTS:
            raise ValueError(f"weight: {list(weight.shape)} on a CPU with {library.best.name} is not served")
        self.outputs, self.inputs = weight.shape
        self.dtype = weight.dtype
        self._library = library
        self._panels, self._scales, self._shifts = rounded(weight)
        self._padded = -(-self.inputs // _LANES) * _LANES
        self._call = Int8Product(
            dtype=DTYPES[str(self.dtype)],
            inputs=self.inputs,
            panels=self._panels.data_ptr(),
            scales=self._scales.data_ptr(),
            shifts=self._shifts.data_ptr(),
            outputs=self.outputs,
            padded=self._padded,
        )

    def multiply(
        self, x: torch.Tensor, bias: torch.Tensor | None = None, *, dtype: torch.dtype, threads: int
    ) -> torch.Tensor:
        """x: `[rows, inputs]` and bias: `[outputs]`, of the weight's dtype. Returns `[rows, outputs]`, rounded to
        `dtype`, bfloat16 or float32. Each row of x counts as multiples of a 32,512th of its largest element; sums are
        exact, so a row's result depends neither on other rows nor on `threads`.

        Raises TypeError or ValueError for an argument that does not fit, naming it.
        """
        import torch

        require_all_fit(self.dtype, ("x", x, (None, self.inputs)))
        if dtype not in (torch.bfloat16, torch.float32):
            raise TypeError(f"dtype: expected {torch.bfloat16} or {torch.float32}, got {dtype}")
        if bias is not None:
            require_all_fit(self.dtype, ("bias", bias, (self.outputs,)))
        rows = x.shape[0]
        out = torch.empty((rows, self.outputs), dtype=dtype)
        bytes_of_rows = torch.empty((rows, 2, self._padded), dtype=torch.uint8)
        scales = torch.empty(rows, dtype=torch.float32)
        call = self._call
        call.x, call.x_stride, call.rows = x.data_ptr(), x.stride(0), rows
        call.bias = None if bias is None else bias.data_ptr()
        call.out, call.out_dtype = out.data_ptr(), DTYPES[str(dtype)]
        call.bytes, call.row_scales = bytes_of_rows.data_ptr(), scales.data_ptr()
        call.threads = threads if rows * self.outputs * self.inputs > ONE_THREAD_ELEMENTS else 1
        self._library.run(Kernel.MULTIPLY_INT8, self._library.best, call)
        return out


def rounded(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """`[outputs, inputs]` -> (int8 `[panels, inputs / 4, PANEL_OUTPUTS, 4]`, float32 and int32 `[panels *
    PANEL_OUTPUTS]`): the weights in 127ths of the largest of their output, what these are multiplied by, and 128 times
    their sums; zeros past the last input and output."""
    import torch

    outputs, inputs = weight.shape
    panels, quads = -(-outputs // PANEL_OUTPUTS), -(-inputs // _QUAD)
    kept = torch.zeros((panels, quads, PANEL_OUTPUTS, _QUAD), dtype=torch.int8)
    scales = torch.zeros(panels * PANEL_OUTPUTS)
    shifts = torch.zeros(panels * PANEL_OUTPUTS, dtype=torch.int32)
    for first in range(0, outputs, _SLAB):
        some = weight[first : first + _SLAB].float()
        scale = some.abs().amax(1) / 127
        whole = (some / scale.clamp_min(torch.finfo(torch.float32).tiny)[:, None]).round_().to(torch.int8)
        scales[first : first + len(some)] = scale
        shifts[first : first + len(some)] = whole.sum(1, dtype=torch.int32) * 128
        padded = whole.new_zeros((-(-len(some) // PANEL_OUTPUTS) * PANEL_OUTPUTS, quads * _QUAD))
        padded[: len(some), :inputs] = whole
        in_panels = padded.view(-1, PANEL_OUTPUTS, quads, _QUAD).transpose(1, 2)
        kept[first // PANEL_OUTPUTS :][: len(in_panels)] = in_panels
    return kept, scales, shifts
