"""What the launch tables need to know about the device that runs a kernel."""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Device:
    """The properties by which tiles and splits are chosen."""

    architecture: str
    """`sm_90`, `gfx942`, ... as triton names it."""
    processors: int
    """Streaming multiprocessors (NVIDIA) or compute units (AMD)."""

    @property
    def is_amd(self) -> bool:
        return self.architecture.startswith("gfx")

    @property
    def dot_reads_shared_memory(self) -> bool:
        """Whether matrix units take operands from shared memory (wgmma, tcgen05), which leaves registers free."""
        return self.architecture in ("sm_90", "sm_100", "sm_103")

    @property
    def has_fp8(self) -> bool:
        """Whether float8_e4m3fn is converted in hardware: from sm_89 (Ada, Hopper) and gfx94 (MI300) on."""
        kind, _, number = self.architecture.partition("_")
        if kind == "sm":
            return int(number) >= 89
        return self.architecture.startswith(("gfx94", "gfx95"))

    def require_dtype(self, name: str, dtype: torch.dtype) -> None:
        """Raise TypeError, naming the argument, where kernels over this dtype do not compile for the device."""
        if str(dtype) == "torch.float8_e4m3fn" and not self.has_fp8:
            raise TypeError(
                f"{name}: {dtype} needs sm_89 or newer, or gfx94 or newer; {self.architecture} has int8 at best"
            )


INTERPRETER = Device("sm_90", processors=8)
"""Stands for a small GPU when Triton's interpreter runs the kernels on CPU tensors."""


def interpreting() -> bool:
    """Whether Triton runs kernels in its interpreter. Read from the environment, so that triton is not imported."""
    return os.environ.get("TRITON_INTERPRET", "").lower() in ("1", "true", "yes", "on", "y")


def device_of(tensor: torch.Tensor, name: str) -> Device:
    """The device a kernel over `tensor` runs on.

    Raises ValueError naming `name` when no Triton kernel can run there: the caller chooses a backend, so there is no
    silent fall-back to torch.
    """
    if tensor.device.type == "cuda":
        return device_at(tensor.device)
    if interpreting():
        return INTERPRETER
    raise ValueError(
        f"{name}: Triton kernels need a CUDA or ROCm tensor (or TRITON_INTERPRET=1), got one on {tensor.device}"
    )


def device_at(device: torch.device) -> Device:
    """What a CUDA or ROCm device is."""
    return _gpu(device.index)


@functools.cache
def _gpu(index: int | None) -> Device:
    import torch

    properties = torch.cuda.get_device_properties(index)
    if torch.version.hip:
        architecture = properties.gcnArchName.partition(":")[0]
    else:
        architecture = f"sm_{properties.major}{properties.minor}"
    return Device(architecture, properties.multi_processor_count)
