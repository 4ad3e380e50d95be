"""The command lines of the containers: a flag for what the pool says explicitly and for what its class decides.

The engine's own defaults are left to the engine, so that they may differ between its versions, and a flag that its
version does not have is left out (engine_flags.py). docs/contract.md lists every flag.
"""

import math
from collections.abc import Mapping
from typing import Final

from kvik_operator.crd.effective import Effective
from kvik_operator.crd.engine_version import Version
from kvik_operator.crd.inferencepool import KvDtype, PoolSpec, PrefixCache
from kvik_operator.crd.quantities import format_duration, parse_quantity
from kvik_operator.objects.engine_flags import MODEL_PULL, SERVE, Flag, knows
from kvik_operator.objects.model_source import FETCHED_PATH, ModelSource

DISK_CACHE_DIR: Final = "/var/cache/kvik-kv"
API_KEYS_DIR: Final = "/var/run/secrets/kvik/api"
API_KEYS_FILE: Final = "keys"
"""Whatever the entry of the Secret is called."""

_KV_DTYPES = {
    None: None,
    KvDtype.AUTO: "auto",
    KvDtype.INT8: "int8",
    KvDtype.FP8: "fp8",
    KvDtype.FP8_DYNAMIC: "fp8-dynamic",
    KvDtype.INT4: "int4",
}
_PREFIX_CACHES = {
    None: None,
    PrefixCache.RADIX: "radix",
    PrefixCache.BLOCK_HASH: "block-hash",
    PrefixCache.DISABLED: "disabled",
}


def serve_args(spec: PoolSpec, effective: Effective, source: ModelSource, engine: Version | None) -> list[str]:
    """`serve SOURCE --flag=value ...` of the engine container, for an engine of this version (None: not known)."""
    batching, model, kv = effective.batching, spec.model, spec.kv_cache
    preemption = spec.batching.preemption
    flags: dict[str, str | int | float | None] = {
        "model-name": effective.model.name,
        "digest": model.digest,
        "dtype": model.dtype and model.dtype.lower(),
        "quantization": model.quantization and model.quantization.lower(),
        "max-context-tokens": model.max_context_tokens,
        "device": effective.resources.device.lower(),
        "slo-class": effective.slo_class.lower(),
        "slo-ttft": None if effective.ttft is None else format_duration(effective.ttft),
        "max-requests": batching.max_requests,
        "max-batch-tokens": batching.max_batch_tokens,
        "chunked-prefill-tokens": batching.chunked_prefill_tokens,
        "max-queued-requests": batching.max_queued_requests,
        "admission": spec.batching.admission and spec.batching.admission.lower(),
        "preemption-mode": preemption.mode and preemption.mode.lower(),
        "swap-threshold-tokens": preemption.swap_threshold_tokens,
        "kv-cache-size": _bytes(effective.kv_cache.size),
        "memory-fraction": None if kv.memory_percent is None else kv.memory_percent / 100,
        "block-tokens": kv.block_tokens,
        "kv-key-dtype": _KV_DTYPES[kv.key_dtype],
        "kv-value-dtype": _KV_DTYPES[kv.value_dtype],
        "kv-dtype-check": kv.dtype_check and kv.dtype_check.lower(),
        "swap-space": _bytes(None if kv.swap_space is None else effective.kv_cache.swap_space),
        "disk-cache": None if kv.disk_cache is None else DISK_CACHE_DIR,
        "disk-cache-size": _bytes(effective.kv_cache.disk_cache),
        "prefix-cache": _PREFIX_CACHES[kv.prefix_cache],
        "api-keys-file": None if spec.api_keys is None else f"{API_KEYS_DIR}/{API_KEYS_FILE}",
        "drain-timeout": format_duration(effective.drain_timeout),
        "startup-timeout": format_duration(effective.startup_timeout),
    }
    return ["serve", literal(source.serve), *_known(flags, SERVE, engine)]


def pull_args(spec: PoolSpec, source: str, token_file: str | None, engine: Version | None) -> list[str]:
    """`model pull SOURCE --to=... ` of the container that fetches the model, for an engine of this version."""
    flags = {"to": FETCHED_PATH, "digest": spec.model.digest, "token-file": token_file}
    return ["model", "pull", literal(source), *_known(flags, MODEL_PULL, engine)]


def literal(text: str) -> str:
    """The kubelet expands `$(NAME)` in arguments and variables; doubled, it stays what the user wrote."""
    return text.replace("$(", "$$(")


def _known(
    values: Mapping[str, str | int | float | None], table: Mapping[str, Flag], engine: Version | None
) -> list[str]:
    return [f"--{name}={value}" for name, value in values.items() if value is not None and knows(engine, table[name])]


def _bytes(quantity: str | None) -> int | None:
    """Whole bytes: the engine need not know all that a Kubernetes quantity can be (1e9, 500m)."""
    return None if quantity is None else math.ceil(parse_quantity(quantity))
