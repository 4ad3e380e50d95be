"""The effective values in the API's shape, for status.effective. Pure."""

from typing import Any

from kvik_operator.crd.effective import Effective, EffectiveScaling
from kvik_operator.crd.quantities import format_duration

Json = dict[str, Any]


def effective_status(effective: Effective) -> Json:
    """Absent values are left out: they mean what the CRD's description of the field says."""
    kv, keys, resources = effective.kv_cache, effective.api_keys, effective.resources
    return prune(
        {
            "model": {
                "name": effective.model.name,
                "dtype": str(effective.model.dtype),
                "quantization": str(effective.model.quantization),
                "maxContextTokens": effective.model.max_context_tokens,
            },
            "slo": {
                "class": str(effective.slo_class),
                "ttft": None if effective.ttft is None else format_duration(effective.ttft),
            },
            "batching": {
                "maxRequests": effective.batching.max_requests,
                "maxBatchTokens": effective.batching.max_batch_tokens,
                "chunkedPrefillTokens": effective.batching.chunked_prefill_tokens,
                "maxQueuedRequests": effective.batching.max_queued_requests,
                "admission": str(effective.batching.admission),
                "preemption": {
                    "mode": str(effective.batching.preemption_mode),
                    "swapThresholdTokens": effective.batching.swap_threshold_tokens,
                },
            },
            "kvCache": {
                "size": kv.size,
                "memoryPercent": kv.memory_percent,
                "blockTokens": kv.block_tokens,
                "keyDtype": str(kv.key_dtype),
                "valueDtype": str(kv.value_dtype),
                "dtypeCheck": str(kv.dtype_check),
                "swapSpace": kv.swap_space,
                "diskCache": None if kv.disk_cache is None else {"size": kv.disk_cache},
                "prefixCache": str(kv.prefix_cache),
            },
            "apiKeys": None if keys is None else {"secretRef": {"name": keys.secret, "key": keys.key}},
            "resources": {
                "device": str(resources.device),
                "accelerator": resources.accelerator,
                "requests": dict(resources.requests),
                "limits": dict(resources.limits),
            },
            "scaling": None if effective.scaling is None else _scaling(effective.scaling),
            "startup": {"timeout": format_duration(effective.startup_timeout)},
            "drain": {"timeout": format_duration(effective.drain_timeout)},
        }
    )


def _scaling(scaling: EffectiveScaling) -> Json:
    full = scaling.pod_full_at
    return {
        "driver": str(scaling.driver),
        "minReplicas": scaling.min_replicas,
        "maxReplicas": scaling.max_replicas,
        "targetLoadPercent": round(scaling.target_load * 100),
        "podFullAt": {
            "kvUtilizationPercent": round(full.kv_utilization * 100),
            "queuedRequests": full.queued_requests,
            "ttft": None if full.ttft is None else format_duration(full.ttft),
        },
        "scaleDownStabilization": format_duration(scaling.scale_down_stabilization),
    }


def prune(value: Json) -> Json:
    """Without the keys that are None, at any depth."""
    return {name: prune(item) if isinstance(item, dict) else item for name, item in value.items() if item is not None}
