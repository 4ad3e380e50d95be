"""Which device and attention backend run the model. Nothing falls back silently."""

from __future__ import annotations

import logging

import torch

from kvik_engine.attention.backend import AttentionBackend
from kvik_engine.attention.cpu_backend import CpuBackend, CpuPath
from kvik_engine.attention.cpu_dequantised import DequantisingPath
from kvik_engine.attention.cpu_gathered import TorchPath
from kvik_engine.attention.cpu_in_place import KernelPath
from kvik_engine.attention.kv_layout import KVFormats
from kvik_engine.errors import StartError, StartReason
from kvik_engine.layers.elementwise import BY_TORCH, CpuElementwise, Elementwise, TritonElementwise
from kvik_engine.models.config import ModelConfig
from kvik_engine.models.registry import Model
from kvik_engine.runner.recorded_forward import RecordedForward
from kvik_engine.runner.runner import Forward
from kvik_kernels.cpu.attention import serves
from kvik_kernels.cpu.library import LibraryUnavailable, load_library
from kvik_kernels.device import device_at

log = logging.getLogger(__name__)


def choose_device(wanted: str) -> torch.device:
    """auto, cpu or cuda (which is what torch calls ROCm devices too).

    Raises StartError: AcceleratorNotVisible when one is asked for and none is there.
    """
    visible = torch.cuda.is_available()
    if wanted == "cuda" and not visible:
        raise StartError(
            StartReason.ACCELERATOR_NOT_VISIBLE,
            "an accelerator is asked for (--device=gpu) and none is visible to this process",
        )
    if wanted not in ("auto", "cpu", "cuda"):
        raise StartError(StartReason.CONFIG_INVALID, f"the device {wanted!r} is not one of auto, cpu, cuda")
    device = torch.device("cuda", torch.cuda.current_device()) if visible and wanted != "cpu" else torch.device("cpu")
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    log.info("device %s (%s)", device, name)
    return device


def choose_backend(
    wanted: str, device: torch.device, model: ModelConfig, dtype: torch.dtype, formats: KVFormats
) -> AttentionBackend:
    """auto, reference, cpu or triton, for a model that computes in `dtype` over a KV cache of `formats`.

    Raises StartError (ConfigInvalid) for one that cannot run on the device.
    """
    own = "cpu" if device.type == "cpu" else "triton"
    name = own if wanted == "auto" else wanted
    if name not in (own, "reference"):
        raise StartError(
            StartReason.CONFIG_INVALID,
            f"the attention backend {name!r} does not run on {device.type}: {own} or reference",
        )
    if name == "reference":
        from kvik_engine.attention.reference import ReferenceBackend

        return ReferenceBackend()
    if name == "cpu":
        return CpuBackend(_cpu_path(model, dtype) or _by_torch(formats))
    from kvik_engine.attention.triton_backend import TritonBackend

    return TritonBackend(fp8=device_at(device).has_fp8)


def choose_elementwise(attention: str, device: torch.device) -> Elementwise:
    """`attention`: the backend that is asked for; beside the reference all is torch."""
    if attention == "reference":
        return BY_TORCH
    if device.type != "cpu":
        return TritonElementwise()
    try:
        return CpuElementwise(load_library())
    except LibraryUnavailable:
        return BY_TORCH  # choose_backend says why


def choose_forward(backend: AttentionBackend, model: Model) -> Forward:
    """Recorded where kernels of a CPU attend; experts are chosen by numbers, which no recording holds."""
    if not isinstance(backend, CpuBackend) or model.config.experts is not None:
        return model.forward
    try:
        return RecordedForward(model, load_library())
    except LibraryUnavailable:
        return model.forward


def _by_torch(formats: KVFormats) -> CpuPath:
    return DequantisingPath() if formats.quantised else TorchPath()


def _cpu_path(model: ModelConfig, dtype: torch.dtype) -> CpuPath | None:
    """Kernels, or None where torch has to do: which of them is said once, with the reason."""
    if model.latent is not None:
        log.info("attention of short rows: by torch, as the kernels do not know latent attention")
        return None
    if not serves(model.head_dim, dtype):
        log.info("attention of short rows: by torch, as the kernels do not know heads of %d", model.head_dim)
        return None
    try:
        library = load_library()
    except LibraryUnavailable as reason:
        log.warning("attention of short rows: by torch: the kernels cannot be used: %s", reason)
        return None
    log.info("attention of short rows: by kernels for %s", library.best.name.lower())
    return KernelPath(library, heads=model.heads)
