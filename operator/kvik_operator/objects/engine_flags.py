"""Which flags an engine knows: each with the version that brought it and the field of the pool that it carries.

docs/contract.md has the same table; tests/contract holds the two, and the engine's own help, to each other.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from kvik_operator.crd.engine_version import Version
from kvik_operator.crd.inferencepool import Model, PoolSpec

_FIRST: Final = Version(0, 1, 0)


@dataclass(frozen=True, slots=True)
class Flag:
    field: str
    """Path under `spec`; the flag may also carry the class's value or a derived one."""
    since: Version = _FIRST


@dataclass(frozen=True, slots=True)
class TooOld:
    """A field that somebody set and the engine does not have."""

    field: str
    since: Version


SERVE: Final[Mapping[str, Flag]] = {
    "model-name": Flag("model.name"),
    "digest": Flag("model.digest"),
    "dtype": Flag("model.dtype"),
    "quantization": Flag("model.quantization"),
    "max-context-tokens": Flag("model.maxContextTokens"),
    "device": Flag("resources.device"),
    "slo-class": Flag("slo.class"),
    "slo-ttft": Flag("slo.ttft"),
    "max-requests": Flag("batching.maxRequests"),
    "max-batch-tokens": Flag("batching.maxBatchTokens"),
    "chunked-prefill-tokens": Flag("batching.chunkedPrefillTokens"),
    "max-queued-requests": Flag("batching.maxQueuedRequests"),
    "admission": Flag("batching.admission"),
    "preemption-mode": Flag("batching.preemption.mode"),
    "swap-threshold-tokens": Flag("batching.preemption.swapThresholdTokens"),
    "kv-cache-size": Flag("kvCache.size"),
    "memory-fraction": Flag("kvCache.memoryPercent"),
    "block-tokens": Flag("kvCache.blockTokens"),
    "kv-key-dtype": Flag("kvCache.keyDtype"),
    "kv-value-dtype": Flag("kvCache.valueDtype"),
    "kv-dtype-check": Flag("kvCache.dtypeCheck"),
    "swap-space": Flag("kvCache.swapSpace"),
    "disk-cache": Flag("kvCache.diskCache.size"),
    "disk-cache-size": Flag("kvCache.diskCache.size"),
    "prefix-cache": Flag("kvCache.prefixCache"),
    "api-keys-file": Flag("apiKeys.secretRef"),
    "drain-timeout": Flag("drain.timeout"),
    "startup-timeout": Flag("startup.timeout"),
}
"""Of `kvik serve`."""
MODEL_PULL: Final[Mapping[str, Flag]] = {
    "to": Flag("model.source"),
    "digest": Flag("model.digest"),
    "token-file": Flag("model.secretRef"),
}
"""Of `kvik model pull`."""


def knows(engine: Version | None, flag: Flag) -> bool:
    """Whether an engine of this version has the flag; one whose version is not known (None) has all."""
    return engine is None or engine >= flag.since


def too_old_for(spec: PoolSpec, engine: Version | None, *tables: Mapping[str, Flag]) -> list[TooOld]:
    """What the pool asks for and the engine cannot do; without `tables`, of all flags. Sorted by field."""
    flags = (flag for table in tables or (SERVE, MODEL_PULL) for flag in table.values())
    missing = {flag.field: TooOld(f"spec.{flag.field}", flag.since) for flag in flags if not knows(engine, flag)}
    if not missing:
        return []
    asked = set(_set_fields(msgspec.to_builtins(spec), msgspec.to_builtins(PoolSpec(model=Model(source="")))))
    return [missing[field] for field in sorted(missing) if field in asked]


def _set_fields(values: Mapping[str, Any], defaults: Mapping[str, Any], under: str = "") -> Iterator[str]:
    """The paths of what differs from an absent field: the API server writes schema defaults into every object."""
    for name, value in values.items():
        path, default = f"{under}{name}", defaults.get(name)
        if value == default:
            continue
        yield path
        if isinstance(value, Mapping):
            yield from _set_fields(value, default if isinstance(default, Mapping) else {}, f"{path}.")
