"""Specs that the CRD refuses: each with the field that the message names, and words of it."""

from __future__ import annotations

from typing import Any

SOURCE = "file:///models/smollm2/model.gguf"
"""A model that is fine."""

REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    # what: (spec, the field in the message, words of the message)
    "no_source": ({"model": {}}, "spec.model.source", "Required value"),
    "empty_source": ({"model": {"source": ""}}, "spec.model.source", "at least 1 chars"),
    "unknown_scheme": ({"model": {"source": "http://x/y"}}, "spec.model.source", "not http://x/y"),
    "s3_not_yet": ({"model": {"source": "s3://bucket/x"}}, "spec.model.source", "must be hf://"),
    "hf_without_revision": ({"model": {"source": "hf://org/name"}}, "spec.model.source", "needs a revision"),
    "hf_without_org": ({"model": {"source": "hf://name@main"}}, "spec.model.source", "needs a revision"),
    "pvc_without_path": ({"model": {"source": "pvc://claim"}}, "spec.model.source", "a claim and a path"),
    "source_climbs_up": ({"model": {"source": "pvc://c/../../etc"}}, "spec.model.source", "must not contain '..'"),
    "file_outside_models": ({"model": {"source": "file:///etc/passwd"}}, "spec.model.source", "file:///models/PATH"),
    "source_with_space": ({"model": {"source": "pvc://c/a b"}}, "spec.model.source", "without spaces"),
    "source_with_newline": ({"model": {"source": "pvc://c/a\nb"}}, "spec.model.source", "pvc"),
    "long_source": ({"model": {"source": "pvc://c/" + "a" * 1024}}, "spec.model.source", "may not be more than 1024"),
    "secret_without_hf": (
        {"model": {"source": SOURCE, "secretRef": {"name": "x"}}},
        "spec.model.secretRef",
        f"only used by hf:// sources, not by {SOURCE}",
    ),
    "short_digest": ({"model": {"source": SOURCE, "digest": "sha256:1"}}, "spec.model.digest", "should match"),
    "model_name_with_space": ({"model": {"source": SOURCE, "name": "a b"}}, "spec.model.name", "should match"),
    "unknown_dtype": ({"model": {"source": SOURCE, "dtype": "FP4"}}, "spec.model.dtype", "supported values"),
    "two_numbers_as_version": ({"engine": {"version": "0.1"}}, "spec.engine.version", "should match"),
    "version_with_v": ({"engine": {"version": "v0.1.0"}}, "spec.engine.version", "should match"),
    "version_with_variant": ({"engine": {"version": "0.1.0-cpu"}}, "spec.engine.version", "should match"),
    "empty_version": ({"engine": {"version": ""}}, "spec.engine.version", "should match"),
    "lower_case_class": ({"slo": {"class": "interactive"}}, "spec.slo.class", "Interactive"),
    "zero_ttft": ({"slo": {"ttft": "0s"}}, "spec.slo.ttft", "longer than 0s"),
    "number_as_ttft": ({"slo": {"ttft": 500}}, "spec.slo.ttft", "must be of type string"),
    "iso_duration": ({"slo": {"ttft": "PT1S"}}, "spec.slo.ttft", "should match"),
    "negative_duration": ({"drain": {"timeout": "-1s"}}, "spec.drain.timeout", "should match"),
    "no_requests": ({"batching": {"maxRequests": 0}}, "spec.batching.maxRequests", "greater than or equal to 1"),
    "chunk_over_batch": (
        {"batching": {"maxBatchTokens": 256, "chunkedPrefillTokens": 512}},
        "spec.batching.chunkedPrefillTokens",
        "must not exceed maxBatchTokens",
    ),
    "requests_over_batch": (
        {"batching": {"maxBatchTokens": 16, "maxRequests": 32}},
        "spec.batching.maxRequests",
        "must not exceed maxBatchTokens",
    ),
    "size_and_percent": (
        {"kvCache": {"size": "1Gi", "memoryPercent": 50}},
        "spec.kvCache.memoryPercent",
        "memoryPercent or size",
    ),
    "swap_without_space": (
        {"batching": {"preemption": {"mode": "Swap"}}},
        "spec.batching.preemption.mode",
        "needs kvCache.swapSpace",
    ),
    "swap_threshold_without_space": (
        {"batching": {"preemption": {"swapThresholdTokens": 500}}, "kvCache": {"blockTokens": 16}},
        "spec.batching.preemption.swapThresholdTokens",
        "needs kvCache.swapSpace",
    ),
    "swap_threshold_of_all": (
        {"batching": {"preemption": {"mode": "Swap", "swapThresholdTokens": 500}}, "kvCache": {"swapSpace": "1Gi"}},
        "spec.batching.preemption.swapThresholdTokens",
        "with mode Auto only",
    ),
    "swap_threshold_of_none": (
        {"batching": {"preemption": {"mode": "Recompute", "swapThresholdTokens": 500}}, "kvCache": {"swapSpace": 1}},
        "spec.batching.preemption.swapThresholdTokens",
        "with mode Auto only",
    ),
    "swap_space_for_nothing": (
        {"batching": {"preemption": {"mode": "Recompute"}}, "kvCache": {"swapSpace": "1Gi", "prefixCache": "Disabled"}},
        "spec.kvCache.swapSpace",
        "would stay empty",
    ),
    "disk_cache_without_swap_space": (
        {"kvCache": {"diskCache": {"size": "9Gi"}}},
        "spec.kvCache.diskCache",
        "needs kvCache.swapSpace, through which all of its blocks go: set it",
    ),
    "disk_cache_without_prefixes": (
        {"kvCache": {"swapSpace": "1Gi", "diskCache": {"size": "9Gi"}, "prefixCache": "Disabled"}},
        "spec.kvCache.diskCache",
        "prefixCache is Disabled",
    ),
    "disk_cache_without_size": (
        {"kvCache": {"swapSpace": "1Gi", "diskCache": {}}},
        "spec.kvCache.diskCache.size",
        "Required value",
    ),
    "empty_disk_cache": (
        {"kvCache": {"swapSpace": "1Gi", "diskCache": {"size": 0}}},
        "spec.kvCache.diskCache.size",
        "greater than 0, not 0",
    ),
    "place_for_the_disk_cache": (
        {"kvCache": {"swapSpace": "1Gi", "diskCache": {"size": "9Gi", "path": "/etc"}}},
        "spec.kvCache.diskCache.path",
        "unknown field",
    ),
    "lower_case_admission": ({"batching": {"admission": "goodput"}}, "spec.batching.admission", "Goodput"),
    "goodput_without_target": (
        {"slo": {"class": "Batch"}, "batching": {"admission": "Goodput"}},
        "spec.batching.admission",
        "needs slo.ttft, since class Batch has none of its own: set it",
    ),
    "keys_without_secret": ({"apiKeys": {}}, "spec.apiKeys.secretRef", "Required value"),
    "keys_in_the_pool": ({"apiKeys": {"keys": ["alice:secret-key"]}}, "spec.apiKeys.keys", "unknown field"),
    "keys_of_no_secret": ({"apiKeys": {"secretRef": {"key": "keys"}}}, "spec.apiKeys.secretRef.name", "Required value"),
    "keys_of_two_dots": (
        {"apiKeys": {"secretRef": {"name": "clients", "key": ".."}}},
        "spec.apiKeys.secretRef.key",
        "should match",
    ),
    "zero_kv": ({"kvCache": {"size": "0"}}, "spec.kvCache.size", "greater than 0, not 0"),
    "odd_block": ({"kvCache": {"blockTokens": 17}}, "spec.kvCache.blockTokens", "supported values"),
    "unknown_kv_dtype": ({"kvCache": {"keyDtype": "INT3"}}, "spec.kvCache.keyDtype", "supported values"),
    "unknown_prefix_cache": ({"kvCache": {"prefixCache": "Tree"}}, "spec.kvCache.prefixCache", "Radix"),
    "hundred_percent": ({"kvCache": {"memoryPercent": 100}}, "spec.kvCache.memoryPercent", "less than or equal to 98"),
    "accelerator_on_cpu": (
        {"resources": {"device": "CPU", "accelerators": {"resourceName": "nvidia.com/gpu"}}},
        "spec.resources.accelerators",
        "need device GPU",
    ),
    "native_resource_as_accelerator": (
        {"resources": {"accelerators": {"resourceName": "cpu"}}},
        "spec.resources.accelerators.resourceName",
        "extended resource",
    ),
    "request_over_limit": (
        {"resources": {"requests": {"memory": "2Gi"}, "limits": {"memory": "1Gi"}}},
        "spec.resources.requests.memory",
        "must not exceed limits.memory",
    ),
    "disk_request_over_limit": (
        {"resources": {"requests": {"ephemeral-storage": "2Gi"}, "limits": {"ephemeral-storage": "1Gi"}}},
        "spec.resources.requests.ephemeral-storage",
        "must not exceed limits.ephemeral-storage",
    ),
    "cpu_request_over_limit": (
        {"resources": {"requests": {"cpu": 2}, "limits": {"cpu": "1500m"}}},
        "spec.resources.requests.cpu",
        "must not exceed limits.cpu, and 2 is more than 1500m",
    ),
    "negative_replicas": ({"replicas": -1}, "spec.replicas", "greater than or equal to 0"),
    "fractional_replicas": ({"replicas": 1.5}, "spec.replicas", "type int"),
    "scaling_without_max": ({"scaling": {"minReplicas": 1}}, "spec.scaling.maxReplicas", "Required value"),
    "min_over_max": (
        {"scaling": {"minReplicas": 3, "maxReplicas": 2}},
        "spec.scaling.minReplicas",
        "must not exceed maxReplicas",
    ),
    "scale_to_zero_not_yet": ({"scaling": {"minReplicas": 0, "maxReplicas": 2}}, "spec.scaling.minReplicas", "to 1"),
    "long_window": (
        {"scaling": {"maxReplicas": 2, "scaleDownStabilization": "61m"}},
        "spec.scaling.scaleDownStabilization",
        "at most 1h",
    ),
    "unknown_strategy": ({"rollout": {"strategy": "Recreate"}}, "spec.rollout.strategy", "InPlace"),
    "long_drain": ({"drain": {"timeout": "2h"}}, "spec.drain.timeout", "at most 1h, not 2h"),
    "long_startup": ({"startup": {"timeout": "7h"}}, "spec.startup.timeout", "at most 6h"),
    "our_label": (
        {"template": {"labels": {"kvik.dev/pool": "other"}}},
        "spec.template.labels",
        "are reserved",
    ),
    "app_label": (
        {"template": {"labels": {"app.kubernetes.io/name": "other"}}},
        "spec.template.labels",
        "are reserved",
    ),
    "bad_label_value": ({"template": {"labels": {"team": "a b"}}}, "spec.template.labels", "must be a label value"),
    "bad_annotation_key": ({"template": {"annotations": {"a b": "c"}}}, "spec.template.annotations", "qualified"),
    "deletion_cost": (
        {"template": {"annotations": {"controller.kubernetes.io/pod-deletion-cost": "9"}}},
        "spec.template.annotations",
        "are reserved",
    ),
    "apparmor_off": (
        {"template": {"annotations": {"container.apparmor.security.beta.kubernetes.io/engine": "unconfined"}}},
        "spec.template.annotations",
        "AppArmor",
    ),
    "system_priority": (
        {"template": {"priorityClassName": "system-node-critical"}},
        "spec.template.priorityClassName",
        "reserved",
    ),
    "kvik_variable": ({"template": {"env": [{"name": "KVIK_PORT", "value": "1"}]}}, "spec.template.env", "reserved"),
    "all_gpus_of_the_node": (
        {"template": {"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]}},
        "spec.template.env",
        "resources decide",
    ),
    "ld_preload": ({"template": {"env": [{"name": "LD_PRELOAD", "value": "x"}]}}, "spec.template.env", "LD_PRELOAD is"),
    "python_path": ({"template": {"env": [{"name": "PYTHONPATH", "value": "x"}]}}, "spec.template.env", "reserved"),
    "token_in_env": (
        {"template": {"env": [{"name": "HF_TOKEN", "value": "x"}]}},
        "spec.template.env",
        "model.secretRef",
    ),
    "same_variable_twice": (
        {"template": {"env": [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]}},
        "spec.template.env",
        "Duplicate value",
    ),
    "env_from_secret": (
        {"template": {"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]}},
        "valueFrom",
        "unknown field",
    ),
}
