"""An operator under test: a child process behind a fault proxy, on a control plane whose pods a fake kubelet runs."""

import json
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from kubernetes import client, config
from kubernetes.client.exceptions import ApiException

from tests.support.api_lists import list_objects
from tests.support.control_plane import RunningControlPlane
from tests.support.fake_kubelet import FakeKubelet
from tests.support.fault_proxy import FaultProxy
from tests.support.kubectl import condition, wait_for
from tests.support.operator_process import OperatorProcess
from tests.support.running_operator import NAME as OPERATOR_NAME
from tests.support.running_operator import NAMESPACE as OPERATOR_NAMESPACE

CHILDREN = (
    "deployments.apps",
    "services",
    "serviceaccounts",
    "poddisruptionbudgets.policy",
    "networkpolicies.networking.k8s.io",
)
"""As kubectl names the kinds that every pool owns."""
AUTOSCALERS = "horizontalpodautoscalers.autoscaling"
POOL = {"group": "kvik.dev", "version": "v1alpha1", "plural": "inferencepools"}
COLLECTED_WITHIN = 90
"""Kubernetes' own garbage collector looks for new kinds of owners every 30 s, and then has to read them."""

Object = Mapping[str, Any]
T = TypeVar("T")


def eventually(what: str, probe: Callable[[], T | None], seconds: float, detail: Callable[[], str] = lambda: "") -> T:
    """What `probe` returns once that is true; asks ten times a second. Raises TimeoutError, as `wait_for`."""
    return wait_for(what, probe, seconds, detail, every=0.1)


def holds(what: str, probe: Callable[[], bool], seconds: float) -> None:
    """Raises AssertionError as soon as `probe` is false within `seconds`."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        assert probe(), f"did not hold: {what}"
        time.sleep(0.1)


@dataclass(slots=True)
class Rig:
    """One namespace, one kubelet, and as many operators with a proxy each as a test starts."""

    plane: RunningControlPlane
    namespace: str
    folder: Path
    api: client.ApiClient
    kubelet: FakeKubelet
    stack: ExitStack
    started: list[tuple[OperatorProcess, FaultProxy]] = field(default_factory=list)

    # --- operators ---

    def proxy(self) -> FaultProxy:
        proxy = FaultProxy(self.plane.kubeconfig, (OPERATOR_NAMESPACE, OPERATOR_NAME))
        return self.stack.enter_context(proxy)

    def operator(self, *flags: str, proxy: FaultProxy | None = None, ready: bool = True) -> OperatorProcess:
        """Start one more, behind `proxy` or a new one."""
        proxy = proxy or self.proxy()
        number = len(self.started)
        kubeconfig = proxy.write_kubeconfig(self.folder / f"operator-{number}.conf")
        operator = OperatorProcess(
            kubeconfig,
            self.folder / f"operator-{number}.log",
            f"--pod-name=operator-{number}",
            *flags,
            lease_namespace=OPERATOR_NAMESPACE,
            lease_name=OPERATOR_NAME,
        )
        self.started.append((self.stack.enter_context(operator), proxy))
        if ready:
            eventually("the operator to be ready", lambda: operator.probe("/ready")[0] == 200, 60, operator.log_tail)
        return operator

    def clear_lease(self) -> None:
        """As if its holder had gone in an orderly way."""
        leases = client.CoordinationV1Api(self.api)
        leases.patch_namespaced_lease(OPERATOR_NAME, OPERATOR_NAMESPACE, {"spec": {"holderIdentity": ""}})

    def lease_holder(self) -> str:
        lease = client.CoordinationV1Api(self.api).read_namespaced_lease(OPERATOR_NAME, OPERATOR_NAMESPACE)
        return (lease.spec.holder_identity if lease.spec else None) or ""

    # --- pools and what belongs to them ---

    def create(self, name: str = "chat", **spec: Any) -> Object:
        base: dict[str, Any] = {"model": {"source": "file:///models/x/model.gguf"}, "resources": {"device": "CPU"}}
        pool = {
            "apiVersion": "kvik.dev/v1alpha1",
            "kind": "InferencePool",
            "metadata": {"name": name},
            "spec": base | spec,
        }
        created: Object = self._pools.create_namespaced_custom_object(namespace=self.namespace, body=pool, **POOL)
        return created

    def patch(self, spec: Object, name: str = "chat") -> None:
        self._pools.patch_namespaced_custom_object(
            namespace=self.namespace, name=name, body={"spec": dict(spec)}, **POOL
        )

    def delete(self, name: str = "chat", propagation: str = "Background") -> None:
        self._pools.delete_namespaced_custom_object(
            namespace=self.namespace, name=name, propagation_policy=propagation, **POOL
        )

    def pool(self, name: str = "chat") -> Object | None:
        try:
            found: Object = self._pools.get_namespaced_custom_object(namespace=self.namespace, name=name, **POOL)
        except ApiException as error:
            if error.status == 404:
                return None
            raise
        return found

    def ready(self, name: str = "chat") -> bool:
        """Ready=True, said of the present generation."""
        pool = self.pool(name)
        ready = condition(pool, "Ready")
        return (
            pool is not None
            and ready is not None
            and ready["status"] == "True"
            and ready["observedGeneration"] == pool["metadata"]["generation"]
        )

    def children(self, name: str = "chat") -> list[Object]:
        return [child for kind in CHILDREN for child in self.listed(kind, name)]

    def revisions(self, name: str = "chat") -> list[Object]:
        """By number, the one in use last."""
        return sorted(self.listed("controllerrevisions.apps", name), key=lambda revision: revision["revision"])

    def pods(self, name: str = "chat") -> list[Object]:
        return self.listed("pods", name)

    def deployment(self, name: str = "chat") -> Object | None:
        found = self.listed("deployments.apps", name)
        return found[0] if found else None

    def listed(self, kind: str, pool: str = "chat") -> list[Object]:
        """What a pool has of a kind as kubectl names it."""
        return list_objects(self.api, kind, self.namespace, f"kvik.dev/pool={pool}")

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        return self.plane.run_kubectl(f"--namespace={self.namespace}", *arguments, stdin=stdin)

    def cleared(self, name: str = "chat") -> bool:
        """Nothing is left of the pool."""
        left = self.children(name) or self.revisions(name) or self.pods(name) or self.listed(AUTOSCALERS, name)
        return not left

    def events(self, reason: str) -> list[Object]:
        """An Event comes after what it tells of: wait for it."""
        return [event for event in list_objects(self.api, "events", self.namespace) if event["reason"] == reason]

    def wait_ready(self, name: str = "chat", seconds: float = 30) -> None:
        """Ready is a pool of which one pod is; its other pods may come later."""
        eventually(f"pool {name} to be ready", lambda: self.ready(name), seconds, lambda: self.explain(name))

    def explain(self, name: str = "chat") -> str:
        """For whoever reads a failed test."""
        logs = "\n".join(f"--- operator {n}\n{op.log_tail()}" for n, (op, _) in enumerate(self.started))
        return f"{json.dumps((self.pool(name) or {}).get('status'), indent=1)}\n{logs}"

    @property
    def _pools(self) -> client.CustomObjectsApi:
        return client.CustomObjectsApi(self.api)


@contextmanager
def rig(plane: RunningControlPlane, folder: Path) -> Iterator[Rig]:
    """Everything that was started ends with it, and its pools are deleted."""
    namespace = f"test-{uuid.uuid4().hex[:8]}"
    plane.run_kubectl("create", "namespace", namespace)
    with config.new_client_from_config(str(plane.kubeconfig)) as api, ExitStack() as stack:
        stack.callback(api.rest_client.pool_manager.clear)  # the client leaves its connections to the collector
        kubelet = stack.enter_context(FakeKubelet(client.CoreV1Api(api)))
        running = Rig(plane, namespace, folder, api, kubelet, stack)
        running.clear_lease()
        try:
            yield running
        finally:  # else the pools of a failed test would be those of the next one's operator
            plane.run_kubectl("delete", "inferencepools.kvik.dev", "--all", f"--namespace={namespace}", "--wait=false")


def essence(objects: Sequence[Object]) -> dict[str, Object]:
    """What must be equal in two runs that ended in the same state: names and specs, without what servers fill in."""
    return {f"{item['kind']}/{item['metadata']['name']}": _stable(item) for item in objects}


_VOLATILE = frozenset({"uid", "resourceVersion", "creationTimestamp", "managedFields", "generation", "status"})
_ASSIGNED = frozenset({"clusterIP", "clusterIPs", "namespace", "deployment.kubernetes.io/revision"})
_OF_THE_OWNER = frozenset({"kvik.dev/manifest-hash"})
"""Differs with the uid of the pool."""


def _stable(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {
            name: _stable(item) for name, item in value.items() if name not in _VOLATILE | _ASSIGNED | _OF_THE_OWNER
        }
    return [_stable(item) for item in value] if isinstance(value, list) else value
