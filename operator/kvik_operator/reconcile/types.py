"""What reconcile takes in, decides and hands out, and the Protocols of those it needs.

Data and Protocols only. `kube/` implements Store and Cluster; `autoscale/board` implements Board.
API objects are plain mappings with the API's camelCase keys, never changed in place.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, Protocol

from kvik_operator.crd.effective import Effective
from kvik_operator.crd.inferencepool import InferencePool, PoolSpec
from kvik_operator.names import ChildKind, PoolKey, Reason
from kvik_operator.objects.scaled_object import KedaTrigger

Object = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class EngineImages:
    """The engine image by `resources.device`."""

    gpu: str
    cpu: str


@dataclass(frozen=True, slots=True)
class NetworkPolicyOptions:
    """Who may reach engine pods. `*_from` are NetworkPolicyPeer mappings; empty means anybody."""

    enabled: bool = True
    api_from: tuple[Object, ...] = ()
    metrics_from: tuple[Object, ...] = ()
    operator_peer: Object | None = None
    """The operator's own pods; always kept on the metrics port, whatever `metrics_from` says."""
    egress: Literal["Open", "Restricted"] = "Open"
    """Restricted: engine pods begin no connection. Another policy of their namespace can let them."""


@dataclass(frozen=True, slots=True)
class ReconcileOptions:
    images: EngineImages
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] = "IfNotPresent"
    network_policy: NetworkPolicyOptions = field(default_factory=NetworkPolicyOptions)
    hf_endpoint: str | None = None
    """Base URL of a Hugging Face hub mirror, given to the container that fetches models; None: the public hub."""
    metrics_api: bool = False
    """Whether the operator serves the metrics API, without which driver HPA cannot work."""
    keda: KedaTrigger | None = None
    """How KEDA reaches the operator's scaler; None: it does not serve one, and driver KEDA cannot work."""


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """The fields of one pod's `GET /info` (docs/contract.md) that status shows. None: the engine did not say."""

    version: str
    model_name: str
    revision: str | None = None
    digest: str | None = None
    parameters: int | None = None
    context: int | None = None
    """Longest prompt + answer this pod serves, in tokens."""
    dtype: str | None = None
    quantization: str | None = None
    kv_key_dtype: str | None = None
    kv_value_dtype: str | None = None
    kv_bytes_per_token: int | None = None
    kv_max_tokens: int | None = None
    """Tokens that the pod's whole KV cache holds."""
    startup: Mapping[str, datetime | None] = field(default_factory=dict)
    """model_fetched, weights_loaded, compiled, warm: when each was reached, in UTC."""


@dataclass(frozen=True, slots=True)
class ScaleStep:
    """One change of replicas that the autoscaler made."""

    time: datetime
    from_replicas: int
    to_replicas: int
    reason: str
    winner: str
    """The term that decided: `kv`, `queue` or `ttft`; `bounds` where min or max did."""
    load_percent: int
    """Load of the whole pool in percent of one full pod."""
    formula: str
    """In words and numbers, at most 256 characters: `60 % of full x 3 pods / 75 % -> 3`."""


@dataclass(frozen=True, slots=True)
class ScalingReport:
    """What the autoscaler thinks of one pool now. `active` False: it holds, and `reason` says why."""

    active: bool
    reason: Reason
    message: str
    desired: int | None
    last_decision: datetime | None
    """When this was decided."""
    history: tuple[ScaleStep, ...] = ()
    """Newest first, at most five."""


class Board(Protocol):
    """The last readings and decisions."""

    def scaling(self, key: PoolKey, pool_uid: str) -> ScalingReport | None:
        """None: nothing known yet (a fresh operator, a pool without `scaling`, or only of another one of this name)."""

    def info(self, pod_uid: str) -> EngineInfo | None:
        """None: not read yet, or that pod is gone."""

    def work(self, pod_uid: str) -> int | None:
        """Requests running plus waiting at the last reading; None: no fresh reading."""

    def keys_outdated(self, pod_uid: str) -> bool:
        """Whether the pod last said that it goes on with earlier API keys."""


@dataclass(frozen=True, slots=True)
class Revision:
    """What the pods of one revision of the pool were made from. `name` is its ControllerRevision's."""

    name: str
    inputs: PoolSpec
    """Without what no pod depends on."""
    effective: Effective
    """As they were when it was rendered; without scaling."""
    image: str
    template: Object
    """Pod template, applied as it is for as long as the pool asks for nothing else."""
    kept: frozenset[str] = frozenset()
    """Fields of the inputs that the API server has dropped from the pool."""


class Store(Protocol):
    """The watched state. A read never blocks and never talks to the API server."""

    def pool(self, key: PoolKey) -> Object | None: ...

    def child(self, key: PoolKey, kind: ChildKind) -> Object | None: ...

    def pods(self, key: PoolKey) -> Sequence[Object]: ...

    def served(self) -> frozenset[ChildKind]:
        """Of the kinds that a cluster need not have, those that this one has."""

    def forget_pool(self, key: PoolKey, uid: str) -> None:
        """The API server says that this very pool is not there: an event was missed. No work on it from now on."""


class Cluster(Protocol):
    """The API server, written to by the leader only. Every method raises errors.ClusterError's subclasses."""

    async def apply(self, manifest: Object) -> Object:
        """Server-side apply with force by field manager kvik-operator; returns the object as stored."""

    async def delete(self, kind: ChildKind, key: PoolKey, uid: str) -> None:
        """Delete the pool's child of this kind if it still has this uid; one that is gone is success."""

    async def patch_status(self, key: PoolKey, status: Object, resource_version: str | None) -> Object:
        """Merge-patch the pool's status subresource (a null removes a field); Conflict if the version moved on."""

    async def annotate_pod(self, namespace: str, name: str, annotations: Mapping[str, str | None]) -> None:
        """Merge-patch a pod's annotations; None removes one. A pod that is gone is success."""

    async def read_pool(self, key: PoolKey) -> Object | None:
        """A fresh read, past every cache; None: there is none. NotFound if the API itself is not served."""

    async def fields_not_served(self) -> frozenset[str]:
        """A fresh look at which fields of a pool's spec the installed CRD does not have, as paths under `spec`."""

    async def read_child(self, kind: ChildKind, key: PoolKey) -> Object | None:
        """A fresh read of the object of the child's name, whether or not it is ours; None: not found."""

    async def list_revisions(self, key: PoolKey) -> Sequence[Object]:
        """A fresh list of the ControllerRevisions with the pool's label, whoever they belong to."""

    async def apply_revision(self, manifest: Object) -> None:
        """Server-side apply, as `apply`; Refused if one of this name has other data."""

    async def delete_revision(self, key: PoolKey, name: str, uid: str) -> None:
        """Delete it if it still has this uid; one that is gone is success."""

    def emit(self, event: "PlannedEvent") -> None:
        """Queue an Event about the pool; equal ones are folded, and none is ever waited for."""


@dataclass(frozen=True, slots=True)
class PlannedEvent:
    key: PoolKey
    type: Literal["Normal", "Warning"]
    reason: str
    message: str
    pool_uid: str | None = None


@dataclass(frozen=True, slots=True)
class Observed:
    """Everything one reconcile looks at, read once."""

    key: PoolKey
    pool: InferencePool
    raw_spec: Object
    """The spec as the API server has it."""
    effective: Effective
    children: Mapping[ChildKind, Object]
    """Only those that are known to be there."""
    pods: tuple[Object, ...]
    served: frozenset[ChildKind]
    """Of the kinds that a cluster need not have, those that this one has."""
    now: datetime
    room_made: datetime | None = None
    """When a pod was last seen to be ending; None: not by this process."""
    kept: frozenset[str] = frozenset()
    """Fields of the spec that the API server has dropped, and that are in effect as the pool's revision has them."""


@dataclass(frozen=True, slots=True)
class RevisionPlan:
    """Which revision the pool is at, and what that asks of the stored ones."""

    use: Revision
    write: tuple[Object, ...] = ()
    """Manifests, that of `use` first: it has to be there before its template is applied."""
    delete: tuple[Object, ...] = ()
    blocked: "ApplyProblem | None" = None
    """An object that is not ours has its name."""


@dataclass(frozen=True, slots=True)
class Desired:
    """What should be there. `manifests` in the order to apply, `unwanted` to delete."""

    manifests: tuple[Object, ...]
    unwanted: tuple[ChildKind, ...]
    replicas: int
    deletion_costs: Mapping[str, str | None]
    """Pod name to the value of its pod-deletion-cost annotation (None removes it); only what differs."""


@dataclass(frozen=True, slots=True)
class ApplyProblem:
    """A child that could not be written, said so that a person can act."""

    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class Applied:
    """What apply did. `children` are the objects as now stored; `gone`: the namespace is being deleted."""

    children: Mapping[ChildKind, Object]
    problems: tuple[ApplyProblem, ...] = ()
    gone: bool = False


@dataclass(frozen=True, slots=True)
class StatusUpdate:
    """How the status should change, whether it matters at once, and the Events that tell of it."""

    patch: Object
    """A merge patch of the status; empty: nothing changed."""
    significant: bool
    """A condition, count, endpoint, decision or reason changed: write now. Else at most once a minute."""
    essence: Object
    """What of the new status is significant."""
    time_alone: bool = False
    """The same was decided again, and nothing else changed: at most once in five minutes."""
    events: tuple[PlannedEvent, ...] = ()


@dataclass(frozen=True, slots=True)
class Requeue:
    """Look at this pool again after so many seconds, even if nothing happens."""

    after: float
