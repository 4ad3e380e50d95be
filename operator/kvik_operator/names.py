"""Names that users, other programs and other versions of the operator rely on: all of them are API.

Only constants belong here. Condition types and reasons are documented in docs/pools.md; a test keeps the two equal.
"""

from enum import StrEnum
from typing import Final, NamedTuple

GROUP: Final = "kvik.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
KIND: Final = "InferencePool"
PLURAL: Final = "inferencepools"
CRD_NAME: Final = f"{PLURAL}.{GROUP}"

FIELD_MANAGER: Final = "kvik-operator"
AUTOSCALER_FIELD_MANAGER: Final = "kvik-autoscaler"
EVENT_COMPONENT: Final = "kvik-operator"

LABEL_POOL: Final = f"{GROUP}/pool"
"""On every child and pod; `kvik.dev/pool=NAME` is the pool's selector, for ever."""
LABEL_MANAGED_BY: Final = "app.kubernetes.io/managed-by"
LABEL_APP_NAME: Final = "app.kubernetes.io/name"
LABEL_APP_INSTANCE: Final = "app.kubernetes.io/instance"
LABEL_APP_COMPONENT: Final = "app.kubernetes.io/component"
APP_NAME: Final = "kvik-engine"
LABEL_TEMPLATE_HASH: Final = f"{GROUP}/template-hash"
"""On pods: a hash of the rendered template, so that pods of two templates can be told apart."""
ANNOTATION_MANIFEST_HASH: Final = f"{GROUP}/manifest-hash"
"""On children: a hash of what was applied last, so that fields we no longer set are noticed."""
ANNOTATION_ROLL_IN_PLACE: Final = f"{GROUP}/roll-in-place"
"""On a Deployment: the template hash of a roll that Auto began with a surge and carries on in place."""
ANNOTATION_TRY_AGAIN: Final = f"{GROUP}/try-again"
"""On a Deployment whose pods the API server refuses: changes when the ReplicaSet's controller should try again."""
ANNOTATION_PAUSED: Final = f"{GROUP}/paused"
"""On a pool, with the value `true`: the operator leaves its objects alone."""
ANNOTATION_POD_DELETION_COST: Final = "controller.kubernetes.io/pod-deletion-cost"
ANNOTATION_DEFAULT_CONTAINER: Final = "kubectl.kubernetes.io/default-container"

CONTAINER_ENGINE: Final = "engine"
CONTAINER_MODEL: Final = "model"
PORT_HTTP: Final = 8000
PORT_METRICS: Final = 8001
PORT_NAME_HTTP: Final = "http"
PORT_NAME_METRICS: Final = "metrics"


class PoolKey(NamedTuple):
    """Identifies one InferencePool, and through it all its children."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class ChildKind(StrEnum):
    """The kinds that a pool owns; not every pool has one of each."""

    DEPLOYMENT = "Deployment"
    SERVICE = "Service"
    SERVICE_ACCOUNT = "ServiceAccount"
    POD_DISRUPTION_BUDGET = "PodDisruptionBudget"
    NETWORK_POLICY = "NetworkPolicy"
    AUTOSCALER = "HorizontalPodAutoscaler"
    SCALED_OBJECT = "ScaledObject"

    @property
    def api_version(self) -> str:
        return _RESOURCES[self][0]

    @property
    def plural(self) -> str:
        return _RESOURCES[self][1]


_RESOURCES: Final[dict[ChildKind, tuple[str, str]]] = {
    ChildKind.DEPLOYMENT: ("apps/v1", "deployments"),
    ChildKind.SERVICE: ("v1", "services"),
    ChildKind.SERVICE_ACCOUNT: ("v1", "serviceaccounts"),
    ChildKind.POD_DISRUPTION_BUDGET: ("policy/v1", "poddisruptionbudgets"),
    ChildKind.NETWORK_POLICY: ("networking.k8s.io/v1", "networkpolicies"),
    ChildKind.AUTOSCALER: ("autoscaling/v2", "horizontalpodautoscalers"),
    ChildKind.SCALED_OBJECT: ("keda.sh/v1alpha1", "scaledobjects"),
}


OPTIONAL_KINDS: Final[frozenset[ChildKind]] = frozenset({ChildKind.SCALED_OBJECT})
"""Kinds that a cluster need not serve."""


def child_name(kind: ChildKind, key: PoolKey) -> str:
    """All children are named like the pool; only the ServiceAccount says whose pods it is for."""
    return f"{key.name}-engine" if kind is ChildKind.SERVICE_ACCOUNT else key.name


REVISION_KIND: Final = "ControllerRevision"
"""Many a pool, each named by a hash of its content, so it is none of the ChildKinds."""
REVISION_API_VERSION: Final = "apps/v1"
REVISION_PLURAL: Final = "controllerrevisions"


class ConditionType(StrEnum):
    READY = "Ready"
    MODEL_LOADED = "ModelLoaded"
    SCALING_ACTIVE = "ScalingActive"
    ROLLOUT_COMPLETE = "RolloutComplete"
    DEGRADED = "Degraded"


class Reason(StrEnum):
    """Why a condition has its status. Removing or renaming one breaks alert rules and scripts."""

    # Good news.
    PODS_READY = "PodsReady"
    MODEL_LOADED = "ModelLoaded"
    ROLLOUT_COMPLETE = "RolloutComplete"
    AS_EXPECTED = "AsExpected"
    SCALING_ON_LOAD = "ScalingOnLoad"
    LOAD_PUBLISHED = "LoadPublished"
    # On the way.
    STARTING = "Starting"
    MODEL_FETCHING = "ModelFetching"
    MODEL_LOADING = "ModelLoading"
    ROLLING_OUT = "RollingOut"
    SURGE_UNSCHEDULABLE = "SurgeUnschedulable"
    OBSERVING_LOAD = "ObservingLoad"
    SWITCHING_DRIVER = "SwitchingDriver"
    # A choice of the user's.
    STOPPED = "Stopped"
    FIXED_REPLICAS = "FixedReplicas"
    PAUSED = "Paused"
    # The cluster does not run the pods.
    IMAGE_PULL_FAILED = "ImagePullFailed"
    UNSCHEDULABLE = "Unschedulable"
    MOUNT_FAILED = "MountFailed"
    QUOTA_EXCEEDED = "QuotaExceeded"
    PODS_REFUSED = "PodsRefused"
    PROGRESS_DEADLINE_EXCEEDED = "ProgressDeadlineExceeded"
    NODE_LOST = "NodeLost"
    PODS_NOT_READY = "PodsNotReady"
    # The engine says so itself, as `Reason: message` in its termination message (docs/contract.md).
    ACCELERATOR_NOT_VISIBLE = "AcceleratorNotVisible"
    INSUFFICIENT_MEMORY = "InsufficientMemory"
    CONFIG_INVALID = "ConfigInvalid"
    MODEL_NOT_FOUND = "ModelNotFound"
    DOWNLOAD_DENIED = "DownloadDenied"
    DOWNLOAD_FAILED = "DownloadFailed"
    MODEL_INVALID = "ModelInvalid"
    MODEL_UNSUPPORTED = "ModelUnsupported"
    DIGEST_MISMATCH = "DigestMismatch"
    PORT_IN_USE = "PortInUse"
    CORE_FAILED = "CoreFailed"
    # The kubelet says so.
    OUT_OF_MEMORY = "OutOfMemory"
    CRASH_LOOPING = "CrashLooping"
    CONTAINER_NOT_CREATED = "ContainerNotCreated"
    STARTUP_TIMED_OUT = "StartupTimedOut"
    # The API server refuses the operator.
    ACCESS_DENIED = "AccessDenied"
    APPLY_REFUSED = "ApplyRefused"
    FOREIGN_OBJECT = "ForeignObject"
    INVALID_SPEC = "InvalidSpec"
    # Scaling.
    NO_LOAD_DATA = "NoLoadData"
    CONTESTED = "Contested"
    METRICS_API_OFF = "MetricsAPIOff"
    KEDA_OFF = "KEDAOff"
    KEDA_NOT_SERVED = "KEDANotServed"
    AUTOSCALER_FAILED = "AutoscalerFailed"
    # Pods serve what the pool has no longer.
    API_KEYS_OUTDATED = "APIKeysOutdated"
    # Pods disagree.
    MODEL_DIFFERS = "ModelDiffers"
    # The pool asks for what its engine does not have.
    ENGINE_TOO_OLD = "EngineTooOld"
    # The installed CRD lacks what the pool was given.
    FIELDS_DROPPED = "FieldsDropped"


ENGINE_REASONS: Final[frozenset[Reason]] = frozenset(
    {
        Reason.ACCELERATOR_NOT_VISIBLE,
        Reason.INSUFFICIENT_MEMORY,
        Reason.CONFIG_INVALID,
        Reason.MODEL_NOT_FOUND,
        Reason.DOWNLOAD_DENIED,
        Reason.DOWNLOAD_FAILED,
        Reason.MODEL_INVALID,
        Reason.MODEL_UNSUPPORTED,
        Reason.DIGEST_MISMATCH,
        Reason.PORT_IN_USE,
        Reason.CORE_FAILED,
    }
)
"""Reasons an engine or model-fetching container may write into its termination message."""
