"""A typed, read-only view of an InferencePool. The only place that knows the API's field names.

The API server has checked the object against the CRD; what it could not check, or an object stored under an older
schema, raises PoolError here. Absent fields are None: what they mean is decided in effective.py.
"""

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Self

import msgspec

from kvik_operator.errors import PoolError
from kvik_operator.names import ANNOTATION_PAUSED, PoolKey


class SloClass(StrEnum):
    INTERACTIVE = "Interactive"
    BALANCED = "Balanced"
    BATCH = "Batch"


class Device(StrEnum):
    GPU = "GPU"
    CPU = "CPU"


class Dtype(StrEnum):
    AUTO = "Auto"
    FP32 = "FP32"
    BF16 = "BF16"
    FP16 = "FP16"


class Quantization(StrEnum):
    NONE = "None"
    INT8 = "INT8"


class KvDtype(StrEnum):
    AUTO = "Auto"
    INT8 = "INT8"
    FP8 = "FP8"
    FP8_DYNAMIC = "FP8Dynamic"
    INT4 = "INT4"


class KvDtypeCheck(StrEnum):
    REFUSE = "Refuse"
    WARN = "Warn"


class PreemptionMode(StrEnum):
    AUTO = "Auto"
    SWAP = "Swap"
    RECOMPUTE = "Recompute"


class Admission(StrEnum):
    QUEUE = "Queue"
    GOODPUT = "Goodput"


class PrefixCache(StrEnum):
    RADIX = "Radix"
    BLOCK_HASH = "BlockHash"
    DISABLED = "Disabled"


class RolloutStrategy(StrEnum):
    AUTO = "Auto"
    SURGE = "Surge"
    IN_PLACE = "InPlace"


class ScalingDriver(StrEnum):
    NATIVE = "Native"
    HPA = "HPA"
    KEDA = "KEDA"
    EXTERNAL = "External"


Quantity = str | int


class _Base(msgspec.Struct, frozen=True, rename="camel"):
    pass


class SecretRef(_Base, frozen=True):
    name: str


class KeysRef(_Base, frozen=True):
    """A Secret, and which of its entries."""

    name: str
    key: str | None = None


class ApiKeys(_Base, frozen=True):
    secret_ref: KeysRef


class Model(_Base, frozen=True):
    source: str
    name: str | None = None
    digest: str | None = None
    secret_ref: SecretRef | None = None
    dtype: Dtype | None = None
    quantization: Quantization | None = None
    max_context_tokens: int | None = None


class Engine(_Base, frozen=True):
    version: str | None = None


class Slo(_Base, frozen=True):
    class_: SloClass = msgspec.field(default=SloClass.BALANCED, name="class")
    ttft: str | None = None


class Preemption(_Base, frozen=True):
    mode: PreemptionMode | None = None
    swap_threshold_tokens: int | None = None


class Batching(_Base, frozen=True):
    max_requests: int | None = None
    max_batch_tokens: int | None = None
    chunked_prefill_tokens: int | None = None
    max_queued_requests: int | None = None
    admission: Admission | None = None
    preemption: Preemption = Preemption()


class DiskCache(_Base, frozen=True):
    size: Quantity


class KvCache(_Base, frozen=True):
    size: Quantity | None = None
    memory_percent: int | None = None
    block_tokens: int | None = None
    key_dtype: KvDtype | None = None
    value_dtype: KvDtype | None = None
    dtype_check: KvDtypeCheck | None = None
    swap_space: Quantity | None = None
    disk_cache: DiskCache | None = None
    prefix_cache: PrefixCache | None = None


class Accelerators(_Base, frozen=True):
    resource_name: str | None = None


class Resources(_Base, frozen=True):
    device: Device = Device.GPU
    accelerators: Accelerators = Accelerators()
    requests: Mapping[str, Quantity] = {}
    limits: Mapping[str, Quantity] = {}


class PodFullAt(_Base, frozen=True):
    kv_utilization_percent: int | None = None
    queued_requests: int | None = None
    ttft: str | None = None


class Scaling(_Base, frozen=True):
    max_replicas: int
    min_replicas: int = 1
    driver: ScalingDriver = ScalingDriver.NATIVE
    target_load_percent: int | None = None
    pod_full_at: PodFullAt = PodFullAt()
    scale_down_stabilization: str | None = None


class Timeout(_Base, frozen=True):
    timeout: str | None = None


class Rollout(_Base, frozen=True):
    strategy: RolloutStrategy = RolloutStrategy.AUTO


class EnvVar(_Base, frozen=True):
    name: str
    value: str = ""


class Template(_Base, frozen=True):
    """Parts that go into the pod as they are stay mappings, in the API's own shape."""

    labels: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}
    service_account_annotations: Mapping[str, str] = {}
    node_selector: Mapping[str, str] = {}
    affinity: Mapping[str, Any] | None = None
    priority_class_name: str | None = None
    runtime_class_name: str | None = None
    tolerations: tuple[Mapping[str, Any], ...] = ()
    topology_spread_constraints: tuple[Mapping[str, Any], ...] | None = None
    image_pull_secrets: tuple[Mapping[str, str], ...] = ()
    env: tuple[EnvVar, ...] = ()


class PoolSpec(_Base, frozen=True):
    model: Model
    engine: Engine = Engine()
    slo: Slo = Slo()
    batching: Batching = Batching()
    kv_cache: KvCache = KvCache()
    api_keys: ApiKeys | None = None
    resources: Resources = Resources()
    replicas: int = 1
    scaling: Scaling | None = None
    rollout: Rollout = Rollout()
    startup: Timeout = Timeout()
    drain: Timeout = Timeout()
    template: Template = Template()


class InferencePool(msgspec.Struct, frozen=True):
    """One pool. `status` stays a mapping in the API's shape: only status.py writes it."""

    key: PoolKey
    uid: str
    generation: int
    spec: PoolSpec
    status: Mapping[str, Any]
    paused: bool = False
    """Its objects are to be left as they are."""

    @classmethod
    def from_object(cls, obj: Mapping[str, Any]) -> Self:
        """Raises PoolError naming the field if the spec is not what the CRD promises."""
        metadata = obj["metadata"]
        try:
            spec = msgspec.convert(obj.get("spec"), PoolSpec)
        except msgspec.ValidationError as error:
            raise _pool_error(str(error)) from error
        return cls(
            key=PoolKey(metadata["namespace"], metadata["name"]),
            uid=metadata["uid"],
            generation=metadata.get("generation", 1),
            spec=spec,
            status=obj.get("status") or {},
            paused=is_paused(obj),
        )


def is_paused(obj: Mapping[str, Any]) -> bool:
    """`true` and nothing else: a pause that somebody misspelled must not look like one."""
    return (obj["metadata"].get("annotations") or {}).get(ANNOTATION_PAUSED) == "true"


def _pool_error(message: str) -> PoolError:
    """msgspec says ``Expected `int`, got `str` - at `$.batching.maxRequests` ``; the path is the field."""
    text, _, path = message.partition(" - at ")
    field = re.sub(r"^`\$\.?|`$", "", path)
    return PoolError(f"spec.{field}" if field else "spec", text.replace("`", ""))
