"""One edit of every field of a pool's spec, and where its effect is seen."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from kvik_operator.names import ChildKind
from tests.support.pools import SOURCE

Groups = Mapping[str, Any]
POD: Final = "spec.template.spec"
_HUB: Final = "hf://org/name@abc#m.gguf"
_DIGEST: Final = "sha256:" + "0" * 64
_KEYS: Final = {"secretRef": {"name": "clients"}}
_SPREAD: Final = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}
_ZONE: Final = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["b"]}]}
_AFFINITY: Final = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [_ZONE]}}}


@dataclass(frozen=True, slots=True)
class Edit:
    """From a smallest pool with the groups `of` to one with `to` over them."""

    to: Groups
    of: Groups = field(default_factory=dict)
    rolls: bool = True
    """Whether it makes new pods."""
    effective: Mapping[str, Any] = field(default_factory=dict)
    """What status.effective says then, by path."""
    argument: str | None = None
    """What the engine is started with then, and was not before."""
    child: ChildKind = ChildKind.DEPLOYMENT
    rendered: Mapping[str, Any] = field(default_factory=dict)
    """What `child` holds then and did not before, by path; of a list, one of its items."""


def _flag(argument: str, group: str, name: str, value: Any, **more: Any) -> Edit:
    """A field that the engine is told by an argument and that status.effective shows as it is."""
    return Edit({group: {name: value}}, argument=argument, effective={f"{group}.{name}": value}, **more)


def _model(argument: str, **fields: Any) -> Edit:
    shown = {f"model.{name}": value for name, value in fields.items() if name != "digest"}
    return Edit({"model": {"source": SOURCE, **fields}}, argument=argument, effective=shown)


def _scaling(path: str, value: Any, **more: Any) -> Edit:
    """A field of `scaling`, by its path there: no pod depends on it."""
    fields: Any = value
    for name in reversed(path.split(".")):
        fields = {name: fields}
    return Edit(
        {"scaling": {"maxReplicas": 4, **fields}},
        of={"scaling": {"maxReplicas": 4}},
        rolls=False,
        effective={f"scaling.{path}": value},
        **more,
    )


def _resource(kind: str, name: str, value: str) -> Edit:
    path = f"{POD}.containers.0.resources.{kind}.{name}"
    return Edit(
        {"resources": {kind: {name: value}}}, effective={f"resources.{kind}.{name}": value}, rendered={path: value}
    )


def _template(name: str, value: Any, seen: Any = None, at: str | None = None, **more: Any) -> Edit:
    """A field of `template`, at the same name in the pod or `at` a path of the child."""
    rendered = {at or f"{POD}.{name}": value if seen is None else seen}
    return Edit({"template": {name: value}}, rendered=rendered, **more)


EDITS: Final[Mapping[str, Edit]] = {
    "model.source": Edit({"model": {"source": "file:///models/other.gguf"}}, argument="/models/other.gguf"),
    "model.name": _model("--model-name=org/other", name="org/other"),
    "model.digest": _model(f"--digest={_DIGEST}", digest=_DIGEST),
    "model.secretRef.name": Edit(
        {"model": {"source": _HUB, "secretRef": {"name": "hub"}}},
        of={"model": {"source": _HUB}},
        rendered={
            f"{POD}.volumes": {
                "name": "model-token",
                "secret": {"secretName": "hub", "items": [{"key": "token", "path": "token"}]},
            }
        },
    ),
    "model.dtype": _model("--dtype=fp32", dtype="FP32"),
    "model.quantization": Edit(
        {"model": {"source": SOURCE, "quantization": "INT8"}},
        of={"resources": {"device": "CPU"}},
        argument="--quantization=int8",
        effective={"model.quantization": "INT8"},
    ),
    "model.maxContextTokens": _model("--max-context-tokens=512", maxContextTokens=512),
    "engine.version": Edit(
        {"engine": {"version": "0.2.0"}}, rendered={f"{POD}.containers.0.image": "kvik/engine:0.2.0"}
    ),
    "slo.class": _flag("--slo-class=batch", "slo", "class", "Batch"),
    "slo.ttft": _flag("--slo-ttft=700ms", "slo", "ttft", "700ms"),
    "batching.maxRequests": _flag("--max-requests=8", "batching", "maxRequests", 8),
    "batching.maxBatchTokens": _flag("--max-batch-tokens=1024", "batching", "maxBatchTokens", 1024),
    "batching.chunkedPrefillTokens": _flag("--chunked-prefill-tokens=64", "batching", "chunkedPrefillTokens", 64),
    "batching.maxQueuedRequests": _flag("--max-queued-requests=0", "batching", "maxQueuedRequests", 0),
    "batching.admission": _flag("--admission=goodput", "batching", "admission", "Goodput"),
    "batching.preemption.mode": _flag("--preemption-mode=recompute", "batching", "preemption", {"mode": "Recompute"}),
    "batching.preemption.swapThresholdTokens": Edit(
        {"batching": {"preemption": {"swapThresholdTokens": 0}}},
        of={"kvCache": {"swapSpace": "1Gi"}},
        argument="--swap-threshold-tokens=0",
        effective={"batching.preemption.swapThresholdTokens": 0},
    ),
    "kvCache.size": _flag("--kv-cache-size=1073741824", "kvCache", "size", "1Gi"),
    "kvCache.memoryPercent": _flag("--memory-fraction=0.5", "kvCache", "memoryPercent", 50),
    "kvCache.blockTokens": _flag("--block-tokens=32", "kvCache", "blockTokens", 32),
    "kvCache.keyDtype": _flag("--kv-key-dtype=int8", "kvCache", "keyDtype", "INT8"),
    "kvCache.valueDtype": _flag("--kv-value-dtype=fp8", "kvCache", "valueDtype", "FP8"),
    "kvCache.dtypeCheck": Edit(
        {"kvCache": {"keyDtype": "INT8", "dtypeCheck": "Warn"}},
        of={"kvCache": {"keyDtype": "INT8"}},
        argument="--kv-dtype-check=warn",
        effective={"kvCache.dtypeCheck": "Warn"},
    ),
    "kvCache.swapSpace": _flag("--swap-space=1073741824", "kvCache", "swapSpace", "1Gi"),
    "kvCache.diskCache.size": Edit(
        {"kvCache": {"swapSpace": "1Gi", "diskCache": {"size": "9Gi"}}},
        of={"kvCache": {"swapSpace": "1Gi"}},
        argument="--disk-cache-size=9663676416",
        effective={"kvCache.diskCache.size": "9Gi"},
    ),
    "kvCache.prefixCache": _flag("--prefix-cache=block-hash", "kvCache", "prefixCache", "BlockHash"),
    "apiKeys.secretRef.name": Edit(
        {"apiKeys": _KEYS},
        argument="--api-keys-file=/var/run/secrets/kvik/api/keys",
        effective={"apiKeys.secretRef": {"name": "clients", "key": "keys"}},
    ),
    "apiKeys.secretRef.key": Edit(
        {"apiKeys": {"secretRef": {"name": "clients", "key": "chat"}}},
        of={"apiKeys": _KEYS},
        effective={"apiKeys.secretRef.key": "chat"},
        rendered={
            f"{POD}.volumes": {
                "name": "api-keys",
                "secret": {"secretName": "clients", "items": [{"key": "chat", "path": "keys"}]},
            }
        },
    ),
    "resources.device": _flag("--device=cpu", "resources", "device", "CPU"),
    "resources.accelerators.resourceName": Edit(
        {"resources": {"accelerators": {"resourceName": "amd.com/gpu"}}},
        effective={"resources.accelerator": "amd.com/gpu"},
        rendered={f"{POD}.containers.0.resources.limits.amd.com/gpu": "1"},
    ),
    **{
        f"resources.{kind}.{name}": _resource(kind, name, value)
        for kind in ("requests", "limits")
        for name, value in {"cpu": "6", "memory": "30Gi", "ephemeral-storage": "20Gi"}.items()
    },
    "replicas": Edit({"replicas": 3}, rolls=False, rendered={"spec.replicas": 3}),
    "scaling.driver": _scaling("driver", "HPA", child=ChildKind.AUTOSCALER, rendered={"spec.maxReplicas": 4}),
    "scaling.minReplicas": _scaling("minReplicas", 2, rendered={"spec.replicas": 2}),
    "scaling.maxReplicas": _scaling("maxReplicas", 7),
    "scaling.targetLoadPercent": _scaling("targetLoadPercent", 50),
    "scaling.podFullAt.kvUtilizationPercent": _scaling("podFullAt.kvUtilizationPercent", 55),
    "scaling.podFullAt.queuedRequests": _scaling("podFullAt.queuedRequests", 9),
    "scaling.podFullAt.ttft": _scaling("podFullAt.ttft", "900ms"),
    "scaling.scaleDownStabilization": _scaling("scaleDownStabilization", "40s"),
    "rollout.strategy": Edit(
        {"rollout": {"strategy": "InPlace"}},
        rolls=False,
        rendered={"spec.strategy.rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}},
    ),
    "startup.timeout": _flag(
        "--startup-timeout=90s", "startup", "timeout", "90s", rendered={"spec.progressDeadlineSeconds": 90}
    ),
    "drain.timeout": _flag(
        "--drain-timeout=40s", "drain", "timeout", "40s", rendered={f"{POD}.terminationGracePeriodSeconds": 55}
    ),
    "template.labels": _template("labels", {"team": "search"}, "search", "spec.template.metadata.labels.team"),
    "template.annotations": _template("annotations", {"note": "yes"}, "yes", "spec.template.metadata.annotations.note"),
    "template.serviceAccountAnnotations": _template(
        "serviceAccountAnnotations",
        {"role": "reader"},
        "reader",
        "metadata.annotations.role",
        rolls=False,
        child=ChildKind.SERVICE_ACCOUNT,
    ),
    "template.nodeSelector": _template("nodeSelector", {"pool": "gpu"}),
    "template.affinity": _template("affinity", _AFFINITY),
    "template.priorityClassName": _template("priorityClassName", "serving"),
    "template.runtimeClassName": _template("runtimeClassName", "nvidia"),
    "template.tolerations": _template(
        "tolerations", [{"key": "gpu", "operator": "Exists"}], {"key": "gpu", "operator": "Exists"}
    ),
    "template.topologySpreadConstraints": _template("topologySpreadConstraints", [_SPREAD], _SPREAD),
    "template.imagePullSecrets": _template("imagePullSecrets", [{"name": "registry"}], {"name": "registry"}),
    "template.env": _template(
        "env", [{"name": "A", "value": "b"}], {"name": "A", "value": "b"}, f"{POD}.containers.0.env"
    ),
}
"""By the field's path under `spec`. What is free-form or Kubernetes' own, such as affinity, is one field."""


def fields_of(schema: Mapping[str, Any], under: str = "") -> Iterator[str]:
    """The paths of a schema that an edit can be of."""
    for name, one in schema["properties"].items():
        path = f"{under}{name}"
        if "properties" in one and path != "template.affinity":
            yield from fields_of(one, f"{path}.")
        else:
            yield path
