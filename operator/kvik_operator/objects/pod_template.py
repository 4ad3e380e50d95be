"""The engine's pod template: one pure function of the pool's spec, its effective values and the engine image.

It is rendered once for each revision (reconcile/revisions.py). Neither `replicas` nor `scaling` may change it, else
scaling would roll the pods (a test holds that). The pod satisfies the "restricted" pod security standard, and nothing
in `spec.template` can loosen it.
"""

import math
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

from kvik_operator.crd.effective import Effective, disk_cache_room
from kvik_operator.crd.inferencepool import Device, PoolSpec
from kvik_operator.names import (
    ANNOTATION_DEFAULT_CONTAINER,
    CONTAINER_ENGINE,
    CONTAINER_MODEL,
    LABEL_TEMPLATE_HASH,
    PORT_HTTP,
    PORT_METRICS,
    PORT_NAME_HTTP,
    PORT_NAME_METRICS,
    ChildKind,
    PoolKey,
    child_name,
)
from kvik_operator.objects.engine_args import (
    API_KEYS_DIR,
    API_KEYS_FILE,
    DISK_CACHE_DIR,
    literal,
    pull_args,
    serve_args,
)
from kvik_operator.objects.engine_image import EngineImage, version_of
from kvik_operator.objects.metadata import Json, digest, labels, selector
from kvik_operator.objects.model_source import ModelSource, model_source

USER_ID: Final = 65532
HOME: Final = "/home/kvik"
CACHE: Final = "/var/cache/kvik"
TOKEN_VOLUME: Final = "model-token"
TOKEN_DIR: Final = "/var/run/secrets/kvik/model"
TOKEN_KEY: Final = "token"
API_KEYS_VOLUME: Final = "api-keys"
DISK_CACHE_VOLUME: Final = "disk-cache"
ACCEPT_WHILE_DRAINING: Final = timedelta(seconds=5)
"""How long an engine still accepts requests after SIGTERM, while endpoints are updated everywhere."""
EXIT_MARGIN: Final = timedelta(seconds=10)
_WRITABLE: Final = {"tmp": "/tmp", "home": HOME, "cache": CACHE, "shm": "/dev/shm"}
_LOST_NODE: Final = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
LOST_AFTER: Final = timedelta(seconds=30)
"""How long a pod may be on a node that does not answer, before another takes its place."""
_PROBE_TIMEOUT: Final = 3
_STARTUP_PERIOD: Final = 2


def pod_template(key: PoolKey, spec: PoolSpec, effective: Effective, image: EngineImage) -> Json:
    """Raises PoolError for a model source that this version does not know."""
    source = model_source(spec.model.source)
    template = spec.template
    pod: Json = {
        "serviceAccountName": child_name(ChildKind.SERVICE_ACCOUNT, key),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": termination_grace_seconds(effective.drain_timeout),
        "securityContext": _pod_security(),
        "containers": [_engine_container(spec, effective, image, source)],
        "volumes": _volumes(spec, effective, source),
        "topologySpreadConstraints": _topology_spread(key, spec),
    }
    if source.fetch is not None:
        pod["initContainers"] = [_model_container(spec, effective, image, source.fetch)]
    pod |= _chosen_by_user(spec)
    metadata: Json = {
        "labels": {**template.labels, **labels(key.name)},
        "annotations": {**template.annotations, ANNOTATION_DEFAULT_CONTAINER: CONTAINER_ENGINE},
    }
    metadata["labels"][LABEL_TEMPLATE_HASH] = digest({"metadata": metadata, "spec": pod})
    return {"metadata": metadata, "spec": pod}


def termination_grace_seconds(drain_timeout: timedelta) -> int:
    return math.ceil((ACCEPT_WHILE_DRAINING + drain_timeout + EXIT_MARGIN).total_seconds())


def mounted(template: Mapping[str, Any]) -> list[str]:
    """What of its namespace a pod of this template cannot start without, in words. Volumes of another shape than ours,
    which somebody may have put into the Deployment, are passed over.
    """
    needed = []
    for volume in template["spec"].get("volumes") or ():
        match volume:
            case {"secret": {"secretName": str(name), "items": [{"key": str(key)}]}}:
                needed.append(f"Secret {name} with the key {key}")
            case {"persistentVolumeClaim": {"claimName": str(name)}}:
                needed.append(f"PersistentVolumeClaim {name}")
    return needed


def _engine_container(spec: PoolSpec, effective: Effective, image: EngineImage, source: ModelSource) -> Json:
    mounts: list[Json] = [{"name": name, "mountPath": path} for name, path in _WRITABLE.items()]
    if source.volume is not None:
        mounts.append({"name": source.volume["name"], "mountPath": source.mount_path, "readOnly": True})
    if effective.kv_cache.disk_cache is not None:
        mounts.append({"name": DISK_CACHE_VOLUME, "mountPath": DISK_CACHE_DIR})
    if effective.api_keys is not None:
        mounts.append({"name": API_KEYS_VOLUME, "mountPath": API_KEYS_DIR, "readOnly": True})
    return {
        "name": CONTAINER_ENGINE,
        "image": image.reference,
        "imagePullPolicy": image.pull_policy,
        "args": serve_args(spec, effective, source, version_of(image.reference)),
        "env": [*_cache_env(), *_user_env(spec)],
        "ports": [
            {"name": PORT_NAME_HTTP, "containerPort": PORT_HTTP, "protocol": "TCP"},
            {"name": PORT_NAME_METRICS, "containerPort": PORT_METRICS, "protocol": "TCP"},
        ],
        "resources": _resources(effective),
        "startupProbe": _probe(
            "/ready", _STARTUP_PERIOD, max(1, math.ceil(effective.startup_timeout.total_seconds() / _STARTUP_PERIOD))
        ),
        "readinessProbe": _probe("/ready", 2, 3),
        "livenessProbe": _probe("/live", 10, 3),
        "securityContext": _container_security(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": mounts,
    }


def _model_container(spec: PoolSpec, effective: Effective, image: EngineImage, source: str) -> Json:
    """Fetches the model. The only container that gets the token and the hub's address."""
    with_token = spec.model.secret_ref is not None
    mounts: list[Json] = [{"name": name, "mountPath": _WRITABLE[name]} for name in ("tmp", "home", "cache")]
    mounts.append({"name": "models", "mountPath": "/models"})
    if with_token:
        mounts.append({"name": TOKEN_VOLUME, "mountPath": TOKEN_DIR, "readOnly": True})
    hub = [] if image.hf_endpoint is None else [{"name": "HF_ENDPOINT", "value": literal(image.hf_endpoint)}]
    resources = {"requests": dict(effective.resources.requests), "limits": dict(effective.resources.limits)}
    token_file = f"{TOKEN_DIR}/{TOKEN_KEY}" if with_token else None
    return {
        "name": CONTAINER_MODEL,
        "image": image.reference,
        "imagePullPolicy": image.pull_policy,
        "args": pull_args(spec, source, token_file, version_of(image.reference)),
        "env": [*_cache_env(), *hub, *_user_env(spec)],
        "resources": resources,
        "securityContext": _container_security(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": mounts,
    }


def _resources(effective: Effective) -> Json:
    requests, limits = dict(effective.resources.requests), dict(effective.resources.limits)
    if effective.resources.device is Device.GPU and effective.resources.accelerator is not None:
        requests[effective.resources.accelerator] = limits[effective.resources.accelerator] = "1"
    return {"requests": requests, "limits": limits}


def _volumes(spec: PoolSpec, effective: Effective, source: ModelSource) -> list[Json]:
    volumes: list[Json] = [{"name": name, "emptyDir": {}} for name in _WRITABLE if name != "shm"]
    volumes.append({"name": "shm", "emptyDir": {"medium": "Memory"}})
    if source.volume is not None:
        volumes.append(source.volume)
    if source.fetch is not None and spec.model.secret_ref is not None:
        volumes.append(_secret(TOKEN_VOLUME, spec.model.secret_ref.name, TOKEN_KEY, TOKEN_KEY))
    kv, keys = effective.kv_cache, effective.api_keys
    if kv.disk_cache is not None:
        volumes.append({"name": DISK_CACHE_VOLUME, "emptyDir": {"sizeLimit": disk_cache_room(kv.disk_cache)}})
    if keys is not None:
        volumes.append(_secret(API_KEYS_VOLUME, keys.secret, keys.key, API_KEYS_FILE))
    return volumes


def _secret(volume: str, name: str, key: str, path: str) -> Json:
    """One entry of a Secret as a file. Mounted whole, never by subPath, so that the kubelet keeps it up to date."""
    return {"name": volume, "secret": {"secretName": name, "items": [{"key": key, "path": path}]}}


def _cache_env() -> list[Json]:
    values = {
        "HOME": HOME,
        "XDG_CACHE_HOME": CACHE,
        "TRITON_CACHE_DIR": f"{CACHE}/triton",
        "TORCHINDUCTOR_CACHE_DIR": f"{CACHE}/inductor",
    }
    return [{"name": name, "value": value} for name, value in values.items()]


def _user_env(spec: PoolSpec) -> list[Json]:
    return [{"name": variable.name, "value": literal(variable.value)} for variable in spec.template.env]


def _probe(path: str, period: int, failures: int) -> Json:
    """`period` in seconds. By port number: a name would be looked up in ports that a sidecar injector may change."""
    return {
        "httpGet": {"path": path, "port": PORT_METRICS, "scheme": "HTTP"},
        "periodSeconds": period,
        "timeoutSeconds": _PROBE_TIMEOUT,
        "failureThreshold": failures,
    }


def _pod_security() -> Json:
    return {
        "runAsNonRoot": True,
        "runAsUser": USER_ID,
        "runAsGroup": USER_ID,
        "fsGroup": USER_ID,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def _container_security() -> Json:
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "runAsNonRoot": True,
        "capabilities": {"drop": ["ALL"]},
    }


def _topology_spread(key: PoolKey, spec: PoolSpec) -> list[Any]:
    if spec.template.topology_spread_constraints is not None:
        return [dict(constraint) for constraint in spec.template.topology_spread_constraints]
    return [
        {
            "maxSkew": 1,
            "topologyKey": topology,
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": selector(key.name),
        }
        for topology in ("topology.kubernetes.io/zone", "kubernetes.io/hostname")
    ]


def _chosen_by_user(spec: PoolSpec) -> Json:
    """The allow list of `spec.template` that goes into the pod as it is."""
    template = spec.template
    chosen: Json = {
        "nodeSelector": dict(template.node_selector),
        "affinity": template.affinity,
        "priorityClassName": template.priority_class_name,
        "runtimeClassName": template.runtime_class_name,
        "tolerations": _tolerations(spec),
        "imagePullSecrets": [dict(secret) for secret in template.image_pull_secrets],
    }
    return {name: value for name, value in chosen.items() if value}


def _tolerations(spec: PoolSpec) -> list[Json]:
    """Kubernetes would leave a pod on a lost node for five minutes, unless somebody says otherwise, as a user may."""
    chosen = [dict(toleration) for toleration in spec.template.tolerations]
    ours = {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": int(LOST_AFTER.total_seconds())}
    return chosen + [{"key": key, **ours} for key in _LOST_NODE if not any(_is_about(one, key) for one in chosen)]


def _is_about(toleration: Json, taint: str) -> bool:
    """No key and no effect mean any."""
    return toleration.get("key") in (None, "", taint) and toleration.get("effect") in (None, "", "NoExecute")
