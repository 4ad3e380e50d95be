"""The command lines of the containers: a flag for what the pool says explicitly and for what its class decides.

The engine's own defaults are left to the engine, so that they may differ between its versions. docs/contract.md lists
every flag.
"""

import math

from kvik_operator.crd.effective import Effective
from kvik_operator.crd.inferencepool import PoolSpec, PrefixCache
from kvik_operator.crd.quantities import format_duration, parse_quantity
from kvik_operator.objects.model_source import FETCHED_PATH, ModelSource

_PREFIX_CACHES = {
    None: None,
    PrefixCache.RADIX: "radix",
    PrefixCache.BLOCK_HASH: "block-hash",
    PrefixCache.DISABLED: "disabled",
}


def serve_args(spec: PoolSpec, effective: Effective, source: ModelSource) -> list[str]:
    """`serve SOURCE --flag=value ...` of the engine container."""
    batching, model, kv = effective.batching, spec.model, spec.kv_cache
    preemption = spec.batching.preemption
    flags: dict[str, str | int | float | None] = {
        "model-name": effective.model.name,
        "digest": model.digest,
        "dtype": model.dtype and model.dtype.lower(),
        "max-context-tokens": model.max_context_tokens,
        "device": effective.resources.device.lower(),
        "slo-class": effective.slo_class.lower(),
        "slo-ttft": None if effective.ttft is None else format_duration(effective.ttft),
        "max-requests": batching.max_requests,
        "max-batch-tokens": batching.max_batch_tokens,
        "chunked-prefill-tokens": batching.chunked_prefill_tokens,
        "max-queued-requests": batching.max_queued_requests,
        "preemption-mode": preemption.mode and preemption.mode.lower(),
        "swap-threshold-tokens": preemption.swap_threshold_tokens,
        "kv-cache-size": _bytes(effective.kv_cache.size),
        "memory-fraction": None if kv.memory_percent is None else kv.memory_percent / 100,
        "block-tokens": kv.block_tokens,
        "swap-space": _bytes(None if kv.swap_space is None else effective.kv_cache.swap_space),
        "prefix-cache": _PREFIX_CACHES[kv.prefix_cache],
        "drain-timeout": format_duration(effective.drain_timeout),
        "startup-timeout": format_duration(effective.startup_timeout),
    }
    return [
        "serve",
        literal(source.serve),
        *(f"--{name}={value}" for name, value in flags.items() if value is not None),
    ]


def pull_args(spec: PoolSpec, source: str, token_file: str | None) -> list[str]:
    """`model pull SOURCE --to=... ` of the container that fetches the model."""
    args = ["model", "pull", literal(source), f"--to={FETCHED_PATH}"]
    if spec.model.digest is not None:
        args.append(f"--digest={spec.model.digest}")
    if token_file is not None:
        args.append(f"--token-file={token_file}")
    return args


def literal(text: str) -> str:
    """The kubelet expands `$(NAME)` in arguments and variables; doubled, it stays what the user wrote."""
    return text.replace("$(", "$$(")


def _bytes(quantity: str | None) -> int | None:
    """Whole bytes: the engine need not know all that a Kubernetes quantity can be (1e9, 500m)."""
    return None if quantity is None else math.ceil(parse_quantity(quantity))
