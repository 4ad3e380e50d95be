"""The values a pool runs with: explicit ones, else derived ones, else the SLO class's. Pure.

`effective(spec, pool_name)` is the only place that fills in what a pool leaves out; status.effective shows the outcome.
Derived values yield to explicit ones; a pair of explicit values that contradicts itself was refused by the CRD's rules.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from typing import Final, TypeVar

from kvik_operator.crd.inferencepool import (
    Admission,
    Batching,
    Device,
    Dtype,
    KvDtype,
    KvDtypeCheck,
    PodFullAt,
    PoolSpec,
    PreemptionMode,
    PrefixCache,
    Quantity,
    Quantization,
    Resources,
    Scaling,
    ScalingDriver,
    SloClass,
)
from kvik_operator.crd.quantities import format_bytes, parse_duration, parse_quantity
from kvik_operator.errors import PoolError


@dataclass(frozen=True, slots=True)
class EffectiveModel:
    name: str
    dtype: Dtype
    quantization: Quantization
    """Of the weights of linear layers."""
    max_context_tokens: int | None
    """None: the model's own limit."""


@dataclass(frozen=True, slots=True)
class EffectiveBatching:
    max_requests: int
    max_batch_tokens: int
    chunked_prefill_tokens: int
    max_queued_requests: int
    admission: Admission = Admission.QUEUE
    preemption_mode: PreemptionMode = PreemptionMode.AUTO
    swap_threshold_tokens: int | None = None
    """None: what the engine measures."""


@dataclass(frozen=True, slots=True)
class EffectiveKvCache:
    size: str | None
    """A quantity; None: what memory_percent leaves beside weights and activations."""
    memory_percent: int | None
    block_tokens: int
    key_dtype: KvDtype
    """Auto: as the model computes."""
    value_dtype: KvDtype
    dtype_check: KvDtypeCheck
    swap_space: str
    """A quantity of host memory, on top of the memory request; 0: none."""
    disk_cache: str | None
    """A quantity of the node's disk, on top of the ephemeral-storage request; None: none."""
    prefix_cache: PrefixCache


@dataclass(frozen=True, slots=True)
class EffectiveApiKeys:
    """Where the keys are that clients must have."""

    secret: str
    key: str


@dataclass(frozen=True, slots=True)
class EffectiveResources:
    device: Device
    accelerator: str | None
    """The extended resource, one a pod; None on a CPU."""
    requests: Mapping[str, str]
    limits: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class EffectivePodFullAt:
    kv_utilization: float
    """Fraction 0-1 of the KV blocks."""
    queued_requests: int
    ttft: timedelta | None
    """None: time to first token is no term of the load."""


@dataclass(frozen=True, slots=True)
class EffectiveScaling:
    driver: ScalingDriver
    min_replicas: int
    max_replicas: int
    target_load: float
    """Fraction 0-1 of a full pod."""
    pod_full_at: EffectivePodFullAt
    scale_down_stabilization: timedelta


@dataclass(frozen=True, slots=True)
class Effective:
    slo_class: SloClass
    ttft: timedelta | None
    """Target for the time to first token; None: the class has none."""
    model: EffectiveModel
    batching: EffectiveBatching
    kv_cache: EffectiveKvCache
    api_keys: EffectiveApiKeys | None
    """None: no key is asked for."""
    resources: EffectiveResources
    scaling: EffectiveScaling | None
    """None: replicas are fixed."""
    startup_timeout: timedelta
    drain_timeout: timedelta


@dataclass(frozen=True, slots=True)
class _ClassValues:
    ttft: timedelta | None
    batching: EffectiveBatching
    kv_full_percent: int
    queue_full: int
    target_load_percent: int
    scale_down_stabilization: timedelta
    drain_timeout: timedelta


_CLASSES: Final[Mapping[SloClass, _ClassValues]] = {
    SloClass.INTERACTIVE: _ClassValues(
        ttft=timedelta(milliseconds=500),
        batching=EffectiveBatching(32, 2048, 256, 64),
        kv_full_percent=70,
        queue_full=2,
        target_load_percent=70,
        scale_down_stabilization=timedelta(seconds=300),
        drain_timeout=timedelta(seconds=120),
    ),
    SloClass.BALANCED: _ClassValues(
        ttft=timedelta(seconds=2),
        batching=EffectiveBatching(64, 4096, 512, 256),
        kv_full_percent=80,
        queue_full=5,
        target_load_percent=75,
        scale_down_stabilization=timedelta(seconds=300),
        drain_timeout=timedelta(seconds=120),
    ),
    SloClass.BATCH: _ClassValues(
        ttft=None,
        batching=EffectiveBatching(256, 8192, 2048, 4096),
        kv_full_percent=95,
        queue_full=64,
        target_load_percent=80,
        scale_down_stabilization=timedelta(seconds=600),
        drain_timeout=timedelta(seconds=600),
    ),
}
_CPU_MAX_REQUESTS: Final = 32
_CPU_MAX_BATCH_TOKENS: Final = 512
_CPU_MAX_CHUNK_TOKENS: Final = 128
_FOLDERS: Final = 16 * 2**20
_DISK: Final = "ephemeral-storage"
_DEFAULT_REQUESTS: Final[Mapping[Device, Mapping[str, str]]] = {
    Device.GPU: {"cpu": "4", "memory": "24Gi"},
    Device.CPU: {"cpu": "1", "memory": "4Gi"},
}
DEFAULT_ACCELERATOR: Final = "nvidia.com/gpu"
DEFAULT_MEMORY_PERCENT: Final = 90
DEFAULT_BLOCK_TOKENS: Final = 16
DEFAULT_KEYS_KEY: Final = "keys"
DEFAULT_STARTUP_TIMEOUT: Final = timedelta(minutes=30)

_Default = TypeVar("_Default", timedelta, timedelta | None)


def effective(spec: PoolSpec, pool_name: str) -> Effective:
    """Raises PoolError for a duration or quantity that cannot be read."""
    values = _CLASSES[spec.slo.class_]
    kv_cache = _kv_cache(spec)
    ttft = _duration("spec.slo.ttft", spec.slo.ttft, values.ttft)
    return Effective(
        slo_class=spec.slo.class_,
        ttft=ttft,
        model=EffectiveModel(
            name=spec.model.name or pool_name,
            dtype=spec.model.dtype or Dtype.AUTO,
            quantization=spec.model.quantization or Quantization.NONE,
            max_context_tokens=spec.model.max_context_tokens,
        ),
        batching=_batching(spec.batching, values.batching, spec.resources.device),
        kv_cache=kv_cache,
        api_keys=_api_keys(spec),
        resources=_resources(spec.resources, kv_cache),
        scaling=None if spec.scaling is None else _scaling(spec.scaling, values, ttft),
        startup_timeout=_duration("spec.startup.timeout", spec.startup.timeout, DEFAULT_STARTUP_TIMEOUT),
        drain_timeout=_duration("spec.drain.timeout", spec.drain.timeout, values.drain_timeout),
    )


def disk_cache_room(size: str) -> str:
    """What a disk cache of this size may take of a node: the engine counts the pages of its files; their folders take
    some more, and Kubernetes evicts a pod that takes more than was said.
    """
    return format_bytes(parse_quantity(size) * Decimal(33) / 32 + _FOLDERS)


def _batching(explicit: Batching, by_class: EffectiveBatching, device: Device) -> EffectiveBatching:
    """Keeps maxRequests and chunkedPrefillTokens within maxBatchTokens by moving whichever is not explicit."""
    max_requests, max_tokens, chunk = (
        by_class.max_requests,
        by_class.max_batch_tokens,
        by_class.chunked_prefill_tokens,
    )
    if device is Device.CPU:
        max_requests = min(max_requests, _CPU_MAX_REQUESTS)
        max_tokens = min(max_tokens, _CPU_MAX_BATCH_TOKENS)
        chunk = min(chunk, _CPU_MAX_CHUNK_TOKENS)
    if explicit.max_batch_tokens is not None:
        max_tokens = explicit.max_batch_tokens
    else:
        max_tokens = max(max_tokens, explicit.max_requests or 0, explicit.chunked_prefill_tokens or 0)
    return EffectiveBatching(
        max_requests=_first(explicit.max_requests, min(max_requests, max_tokens)),
        max_batch_tokens=max_tokens,
        chunked_prefill_tokens=_first(explicit.chunked_prefill_tokens, min(chunk, max_tokens)),
        max_queued_requests=_first(explicit.max_queued_requests, by_class.max_queued_requests),
        admission=explicit.admission or Admission.QUEUE,
        preemption_mode=explicit.preemption.mode or PreemptionMode.AUTO,
        swap_threshold_tokens=explicit.preemption.swap_threshold_tokens,
    )


def _kv_cache(spec: PoolSpec) -> EffectiveKvCache:
    explicit, disk = spec.kv_cache, spec.kv_cache.disk_cache
    size = None if explicit.size is None else _quantity("spec.kvCache.size", explicit.size)
    by_default = None if size is not None else DEFAULT_MEMORY_PERCENT
    return EffectiveKvCache(
        size=size,
        memory_percent=explicit.memory_percent if explicit.memory_percent is not None else by_default,
        block_tokens=_first(explicit.block_tokens, DEFAULT_BLOCK_TOKENS),
        key_dtype=explicit.key_dtype or KvDtype.AUTO,
        value_dtype=explicit.value_dtype or KvDtype.AUTO,
        dtype_check=explicit.dtype_check or KvDtypeCheck.REFUSE,
        swap_space="0" if explicit.swap_space is None else _quantity("spec.kvCache.swapSpace", explicit.swap_space),
        disk_cache=None if disk is None else _quantity("spec.kvCache.diskCache.size", disk.size),
        prefix_cache=explicit.prefix_cache or PrefixCache.RADIX,
    )


def _api_keys(spec: PoolSpec) -> EffectiveApiKeys | None:
    if spec.api_keys is None:
        return None
    reference = spec.api_keys.secret_ref
    return EffectiveApiKeys(reference.name, reference.key or DEFAULT_KEYS_KEY)


def _resources(explicit: Resources, kv_cache: EffectiveKvCache) -> EffectiveResources:
    """An absent request is the device's default or a lower explicit limit; an absent memory limit is the request.

    The swap space comes on top of both, so that a pool that gets one needs no other change; so does the disk cache on
    top of the request of ephemeral-storage, and of its limit where there is one.
    """
    limits = {name: _quantity(f"spec.resources.limits.{name}", value) for name, value in explicit.limits.items()}
    requests = {name: _quantity(f"spec.resources.requests.{name}", value) for name, value in explicit.requests.items()}
    for name, default in _DEFAULT_REQUESTS[explicit.device].items():
        if name not in requests:
            limit = limits.get(name)
            lower = limit is not None and parse_quantity(limit) < parse_quantity(default)
            requests[name] = limit if lower and limit is not None else default
    limits.setdefault("memory", requests["memory"])
    for values in (requests, limits):
        values["memory"] = _with(values["memory"], kv_cache.swap_space)
    if kv_cache.disk_cache is not None:
        limit = limits.get(_DISK)
        room = disk_cache_room(kv_cache.disk_cache)
        requests[_DISK] = _with(requests.get(_DISK, limit or "0"), room)
        if limit is not None:
            limits[_DISK] = _with(limit, room)
    accelerator = None
    if explicit.device is Device.GPU:
        accelerator = explicit.accelerators.resource_name or DEFAULT_ACCELERATOR
    return EffectiveResources(explicit.device, accelerator, requests, limits)


def _with(quantity: str, more: str) -> str:
    """As it was written, unless something comes on top."""
    return format_bytes(parse_quantity(quantity) + parse_quantity(more)) if parse_quantity(more) else quantity


def _scaling(explicit: Scaling, values: _ClassValues, ttft: timedelta | None) -> EffectiveScaling:
    stabilization = _duration(
        "spec.scaling.scaleDownStabilization", explicit.scale_down_stabilization, values.scale_down_stabilization
    )
    return EffectiveScaling(
        driver=explicit.driver,
        min_replicas=explicit.min_replicas,
        max_replicas=explicit.max_replicas,
        target_load=_first(explicit.target_load_percent, values.target_load_percent) / 100,
        pod_full_at=_pod_full_at(explicit.pod_full_at, values, ttft),
        scale_down_stabilization=stabilization,
    )


def _pod_full_at(explicit: PodFullAt, values: _ClassValues, ttft: timedelta | None) -> EffectivePodFullAt:
    return EffectivePodFullAt(
        kv_utilization=_first(explicit.kv_utilization_percent, values.kv_full_percent) / 100,
        queued_requests=_first(explicit.queued_requests, values.queue_full),
        ttft=_duration("spec.scaling.podFullAt.ttft", explicit.ttft, ttft),
    )


def _first(explicit: int | None, default: int) -> int:
    return default if explicit is None else explicit


def _duration(field: str, text: str | None, default: _Default) -> timedelta | _Default:
    if text is None:
        return default
    try:
        return parse_duration(text)
    except ValueError as error:
        raise PoolError(field, str(error)) from error


def _quantity(field: str, value: Quantity) -> str:
    """The quantity as written, once it is known to be one."""
    try:
        parse_quantity(value)
    except ValueError as error:
        raise PoolError(field, str(error)) from error
    return str(value)
