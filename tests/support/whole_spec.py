"""A pool that sets every field that can be set together."""

from typing import Any

WHOLE_SPEC: dict[str, Any] = {
    "model": {
        "source": "hf://org/name@3f2a9c1#model-q4_1.gguf",
        "name": "org/chat:latest",
        "digest": "sha256:" + "0" * 64,
        "secretRef": {"name": "hf-token"},
        "dtype": "BF16",
        "quantization": "None",
        "maxContextTokens": 8192,
    },
    "engine": {"version": "0.2.0-rc.1"},
    "slo": {"class": "Interactive", "ttft": "1s500ms"},
    "batching": {
        "maxRequests": 8,
        "maxBatchTokens": 512,
        "chunkedPrefillTokens": 512,
        "maxQueuedRequests": 0,
        "admission": "Goodput",
        "preemption": {"mode": "Auto", "swapThresholdTokens": 0},
    },
    "kvCache": {
        "size": "1.5Gi",
        "blockTokens": 32,
        "keyDtype": "INT8",
        "valueDtype": "INT4",
        "dtypeCheck": "Warn",
        "swapSpace": "4Gi",
        "diskCache": {"size": "20Gi"},
        "prefixCache": "BlockHash",
    },
    "apiKeys": {"secretRef": {"name": "clients", "key": ".chat-keys.v1"}},
    "resources": {
        "device": "GPU",
        "accelerators": {"resourceName": "amd.com/gpu"},
        "requests": {"cpu": 2, "memory": "8Gi", "ephemeral-storage": "20Gi"},
        "limits": {"cpu": "4", "memory": "8Gi"},
    },
    "scaling": {
        "driver": "HPA",
        "minReplicas": 1,
        "maxReplicas": 4,
        "targetLoadPercent": 70,
        "podFullAt": {"kvUtilizationPercent": 80, "queuedRequests": 5, "ttft": "2s"},
        "scaleDownStabilization": "60s",
    },
    "rollout": {"strategy": "InPlace"},
    "startup": {"timeout": "10m"},
    "drain": {"timeout": "90s"},
    "template": {
        "labels": {"team": "search"},
        "annotations": {"example.com/note": "yes"},
        "serviceAccountAnnotations": {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/r"},
        "nodeSelector": {"pool": "gpu"},
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]}]
                }
            }
        },
        "priorityClassName": "serving",
        "runtimeClassName": "nvidia",
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
        "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}],
        "imagePullSecrets": [{"name": "registry"}],
        "env": [{"name": "NCCL_DEBUG", "value": "WARN"}],
    },
}
