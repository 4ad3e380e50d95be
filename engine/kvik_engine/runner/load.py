"""From a configuration to a runner with a loaded, measured model, not yet with a KV pool."""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable
from pathlib import Path

import torch

from kvik_engine.attention.backend import AttentionBackend
from kvik_engine.attention.kv_layout import KVFormats
from kvik_engine.config import EngineConfig
from kvik_engine.errors import StartError, StartReason
from kvik_engine.layers.tensors import TensorSource
from kvik_engine.models.config import ModelConfig
from kvik_engine.models.kv_groups import kv_groups
from kvik_engine.models.read_config import from_hf
from kvik_engine.models.registry import build
from kvik_engine.runner.devices import choose_backend, choose_device, choose_elementwise, choose_forward
from kvik_engine.runner.dtypes import DTYPES, choose_dtype
from kvik_engine.runner.kv_quality import KVTrial
from kvik_engine.runner.largest_step import CacheBounds, deepest_context, measure_step
from kvik_engine.runner.linear_paths import choose_products
from kvik_engine.runner.memory import host_memory, return_freed_memory
from kvik_engine.runner.runner import ModelRunner, RunnerLimits
from kvik_engine.runner.threads import usable_threads
from kvik_engine.sample_text import SAMPLE_FILE, read_sample
from kvik_engine.step import ModelFacts
from kvik_engine.weights.checkpoint import CheckpointTensors, open_checkpoint

log = logging.getLogger(__name__)


def load_runner(config: EngineConfig, progress: Callable[[str], None]) -> ModelRunner:
    """Load the model at config.model_path; `progress` is told each phase in a few words.

    Raises StartError: AcceleratorNotVisible, ConfigInvalid, ModelNotFound, ModelInvalid, ModelUnsupported.
    """
    threads = config.threads or usable_threads()
    torch.set_num_threads(threads)
    device = choose_device(config.device)
    checkpoint = open_checkpoint(Path(config.model_path))
    model_config = from_hf(checkpoint.config)
    dtype = choose_dtype(config.dtype, device, model_config.hidden_size, model_config.intermediate_size)
    progress(f"loading weights of {config.model_name} as {dtype} on {device}, {threads} CPU threads")
    product = choose_products(config.quantization, DTYPES[dtype], device)
    tensors = CheckpointTensors(
        checkpoint,
        dtype=DTYPES[dtype],
        device=device,
        product=product,
        elementwise=choose_elementwise(config.attention, device),
    )
    context = min(model_config.context_length, config.max_context_tokens or model_config.context_length)
    limits = RunnerLimits(max_requests=config.max_requests, max_tokens=context, block_tokens=config.block_tokens)
    formats = KVFormats.of(dtype, config.kv_key_dtype, config.kv_value_dtype)
    return make_runner(
        model_config,
        tensors,
        dtype=dtype,
        formats=formats,
        backend=choose_backend(config.attention, device, model_config, DTYPES[dtype], formats),
        limits=limits,
        max_batch_tokens=config.max_batch_tokens,
        cache=CacheBounds(
            config.kv_cache_size, config.memory_fraction, config.swap_space if device.type == "cpu" else 0
        ),
        trial=_kv_trial(config),
        quantization=config.quantization,
        progress=progress,
    )


def make_runner(
    config: ModelConfig,
    tensors: TensorSource,
    *,
    dtype: str,
    formats: KVFormats | None = None,
    backend: AttentionBackend,
    limits: RunnerLimits,
    max_batch_tokens: int,
    quantization: str = "none",
    progress: Callable[[str], None],
    cache: CacheBounds | None = None,
    trial: KVTrial | None = None,
) -> ModelRunner:
    """Build the model from its tensors and measure it. Needs no file and no EngineConfig.

    `formats` of the KV cache; None: `dtype`'s. `cache` bounds how deep a step can be; None: the device does. `trial` of
    formats that are quantised; None: they are taken untried. `quantization` names what `tensors` multiply by.

    Raises StartError: ConfigInvalid, ModelUnsupported, ModelInvalid.
    """
    formats = formats or KVFormats.of(dtype)
    check_attention(config, backend, formats)
    started = time.perf_counter()
    model = build(config, tensors)
    gc.collect()
    loaded = time.perf_counter()
    groups = kv_groups(config, limits.block_tokens, formats)
    if trial is not None and formats.quantised:
        progress(f"measuring what {formats.key.name} keys and {formats.value.name} values cost")
        trial.check(model, backend, formats, dtype=dtype, device=tensors.device)
    progress("measuring memory")
    memory = measure_step(
        model,
        backend,
        limits,
        max_batch_tokens=max_batch_tokens,
        context=deepest_context(groups, limits, cache or CacheBounds(), tensors.device),
        dtype=DTYPES[dtype],
        formats=formats,
        device=tensors.device,
    )
    return_freed_memory()
    host = host_memory(tensors.device)
    phase = "warm" if tensors.device.type == "cpu" else "compiled"  # nothing is compiled for a CPU
    facts = ModelFacts(
        vocab_size=config.vocab_size,
        context_length=config.context_length,
        parameters=model.parameters,
        dtype=dtype,
        quantization=quantization,
        kv_key_dtype=formats.key.name,
        kv_value_dtype=formats.value.name,
        device=str(tensors.device),
        attention=backend.name,
        groups=groups,
        device_bytes_total=memory.total,
        device_bytes_used=memory.used,
        host_bytes_total=None if host is None else host.total,
        host_bytes_used=None if host is None else host.used,
        startup_seconds={"weights_loaded": loaded - started, phase: time.perf_counter() - loaded},
    )
    return ModelRunner(model, backend, limits, facts, choose_forward(backend, model))


def _kv_trial(config: EngineConfig) -> KVTrial | None:
    text = read_sample(Path(config.run_dir) / SAMPLE_FILE) if config.quantises_kv else None
    return None if text is None else KVTrial(text, refuse=config.kv_dtype_check == "refuse")


def check_attention(config: ModelConfig, backend: AttentionBackend, formats: KVFormats) -> None:
    """StartError where the backend does not know how the model attends (ModelUnsupported), or what it should quantise
    the KV cache to (ConfigInvalid)."""
    for flag, wanted in (("--kv-key-dtype", formats.key), ("--kv-value-dtype", formats.value)):
        if wanted.quantised and wanted.name not in backend.quantised:
            raise StartError(
                StartReason.CONFIG_INVALID,
                f"{flag}={wanted.name} does not run on the attention backend {backend.name!r} on this device: "
                f"{', '.join(('auto', *backend.quantised))} do",
            )
    if config.latent is not None and not backend.attends_latents:
        raise StartError(
            StartReason.MODEL_UNSUPPORTED,
            f"{config.architecture}: latent attention does not run on the attention backend {backend.name!r}; "
            "--attention=reference computes it, slowly",
        )
