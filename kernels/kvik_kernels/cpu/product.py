"""Products with one bfloat16 weight, which is kept in the order in which the kernel reads it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvik_kernels.checks import require_all_fit, require_dtype, require_shape
from kvik_kernels.cpu.library import DTYPES, InstructionSet, Kernel, Library
from kvik_kernels.cpu.structs import PANEL_OUTPUTS, Product

if TYPE_CHECKING:
    import torch

ONE_THREAD_ELEMENTS = 1 << 16
"""Elements of a weight, times rows, below which waking a second thread takes longer than it saves."""


class PanelWeight:
    """W `[outputs, inputs]` and its products: y = x W^T + b. One thread at a time may use it."""

    def __init__(self, library: Library, weight: torch.Tensor) -> None:
        """weight: bfloat16 `[outputs, inputs]`, of which a copy is made. Raises TypeError or ValueError for one that is
        not served, and on a CPU without AVX512's products of bfloat16.
        """
        import torch

        require_shape("weight", weight, (None, None))
        require_dtype("weight", weight, torch.bfloat16)
        if not serves(library, weight):
            raise ValueError(f"weight: {list(weight.shape)} on a CPU with {library.best.name} is not served")
        self.outputs, self.inputs = weight.shape
        self._library = library
        self._panels = in_panels(weight)
        self._call = Product(
            panels=self._panels.data_ptr(),
            pairs=self.inputs // 2,
            outputs=self.outputs,
        )

    def multiply(
        self, x: torch.Tensor, bias: torch.Tensor | None = None, *, dtype: torch.dtype, threads: int
    ) -> torch.Tensor:
        """x: bfloat16 `[rows, inputs]`; bias: bfloat16 `[outputs]`. Returns `[rows, outputs]`, accumulated in float32
        and rounded once to `dtype`, bfloat16 or float32. A row's result depends neither on other rows nor on
        `threads`.

        Raises TypeError or ValueError for an argument that does not fit, naming it.
        """
        import torch

        require_all_fit(torch.bfloat16, ("x", x, (None, self.inputs)))
        if dtype not in (torch.bfloat16, torch.float32):
            raise TypeError(f"dtype: expected {torch.bfloat16} or {torch.float32}, got {dtype}")
        if bias is not None:
            require_all_fit(torch.bfloat16, ("bias", bias, (self.outputs,)))
        rows = x.shape[0]
        out = torch.empty((rows, self.outputs), dtype=dtype)
        call = self._call
        call.x, call.x_stride, call.rows = x.data_ptr(), x.stride(0), rows
        call.bias = None if bias is None else bias.data_ptr()
        call.out, call.out_dtype = out.data_ptr(), DTYPES[str(dtype)]
        call.threads = threads if rows * self.outputs * self.inputs > ONE_THREAD_ELEMENTS else 1
        self._library.run(Kernel.MULTIPLY, self._library.best, call)
        return out


def serves(library: Library, weight: torch.Tensor) -> bool:
    """Whether products with such a weight are computed here: inputs are multiplied in pairs."""
    return library.best >= InstructionSet.AVX512_BF16 and weight.shape[1] > 0 and weight.shape[1] % 2 == 0


def in_panels(weight: torch.Tensor) -> torch.Tensor:
    """`[outputs, inputs]` -> `[panels, inputs / 2, PANEL_OUTPUTS, 2]`, zeros past the last output."""
    outputs, inputs = weight.shape
    full, left = divmod(outputs, PANEL_OUTPUTS)
    panels = weight.new_zeros((full + (left > 0), inputs // 2, PANEL_OUTPUTS, 2))
    # Straight into place: a second copy of a large head might not fit beside the first.
    whole = weight[: full * PANEL_OUTPUTS].unflatten(0, (full, PANEL_OUTPUTS))
    panels[:full] = whole.unflatten(2, (inputs // 2, 2)).transpose(1, 2)
    if left:
        panels[full, :, :left] = weight[full * PANEL_OUTPUTS :].unflatten(1, (inputs // 2, 2)).transpose(0, 1)
    return panels
