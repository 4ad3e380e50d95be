"""Who reaches whom once somebody enforces the NetworkPolicies of chart and pools: kube-router, on the local cluster.

With a restricted egress, a policy of the namespace's owner lets the loader out to the hub: policies add up.
"""

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from scripts.demo_ownership import ensure_namespace, remove_namespace
from tests.cluster import enforcer
from tests.cluster.paths import local_cluster
from tests.e2e.conftest import Images, Release
from tests.support import stand_in_hub
from tests.support.hub_in_cluster import PORT, SECRET, give_token, hub_url, start_hub
from tests.support.kubectl import Kubectl, condition, wait_for

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.long,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(os.environ.get("CLUSTER", "local") != "local", reason="needs our own cluster's network"),
]

POOL = "inferencepools.kvik.dev"
NAME = "guarded"
PODS = f"kvik.dev/pool={NAME}"
POOLS, OTHERS = "kvik-e2e-guarded", "kvik-e2e-around"
API, METRICS, OPERATOR_PORT = 8000, 8001, 8080
MANIFEST = {
    "apiVersion": "kvik.dev/v1alpha1",
    "kind": "InferencePool",
    "metadata": {"name": NAME},
    "spec": {
        "model": {"source": f"hf://{stand_in_hub.REPOSITORY}@main", "secretRef": {"name": SECRET}},
        "kvCache": {"size": "64Mi"},
        "resources": {"device": "CPU", "requests": {"cpu": "100m", "memory": "2500Mi"}},
        "startup": {"timeout": "180s"},
        "drain": {"timeout": "5s"},
    },
}
ACTOR = """
apiVersion: v1
kind: Pod
metadata: {{name: {name}, labels: {{role: {name}}}}}
spec:
  terminationGracePeriodSeconds: 0
  automountServiceAccountToken: false
  securityContext: {{runAsNonRoot: true, runAsUser: 65532, seccompProfile: {{type: RuntimeDefault}}}}
  containers:
  - name: actor
    image: {image}
    imagePullPolicy: IfNotPresent
    command: [sleep, "3600"]
    securityContext: {{allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {{drop: [ALL]}}}}
"""
PROBE = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=10).close()
    print("reached")
except ConnectionRefusedError:
    print("refused")
"""
WAY_TO_HUB = f"""
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {{name: way-to-hub}}
spec:
  podSelector: {{matchLabels: {{kvik.dev/pool: {NAME}}}}}
  policyTypes: [Egress]
  egress:
  - to: [{{namespaceSelector: {{matchLabels: {{kubernetes.io/metadata.name: kube-system}}}}}}]
    ports: [{{port: 1053, protocol: UDP}}, {{port: 1053, protocol: TCP}}]
  - to: [{{podSelector: {{matchLabels: {{app: hub}}}}}}]
    ports: [{{port: {PORT}, protocol: TCP}}]
"""


def peer(namespace: str, role: str) -> Mapping[str, Any]:
    return {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
        "podSelector": {"matchLabels": {"role": role}},
    }


@dataclass(frozen=True, slots=True)
class Scene:
    release: Release
    pools: Kubectl
    others: Kubectl

    def install(self, egress: str) -> None:
        api = [{"podSelector": {"matchLabels": {"role": "client"}}}, peer(OTHERS, "router")]
        self.release.install(
            f"--set-json=networkPolicy.apiFrom={json.dumps(api)}",
            f"--set-json=networkPolicy.metricsFrom={json.dumps([peer(OTHERS, 'prometheus')])}",
            f"--set=networkPolicy.egress={egress}",
            f"--set=huggingFace.endpoint={hub_url(self.pools)}",
        )

    def engine(self) -> Mapping[str, Any] | None:
        """The pool's pod, once it is ready and alone."""
        pods = self.pools.list("pods", PODS)
        ready = [pod for pod in pods if (condition(pod, "Ready") or {}).get("status") == "True"]
        return ready[0] if len(pods) == len(ready) == 1 else None

    def wait_for_engine(self) -> Mapping[str, Any]:
        return wait_for(
            "the pool's pod",
            self.engine,
            180,
            lambda: self.pools.run("describe", POOL, NAME) + self.pools.run("get", "pods,events"),
        )

    def operator(self) -> Mapping[str, Any]:
        """The operator's pod that serves: another one may still be on its way out."""
        return wait_for("the operator's pod", self._serving_operator, 60)

    def _serving_operator(self) -> Mapping[str, Any] | None:
        for pod in self.release.system.list("pods", "app.kubernetes.io/instance=kvik"):
            ready = (condition(pod, "Ready") or {}).get("status") == "True"
            if ready and "deletionTimestamp" not in pod["metadata"]:
                return pod
        return None

    def reached(self) -> dict[str, tuple[str, str]]:
        """From each actor, the engine's API and its metrics port."""
        address = self.wait_for_engine()["status"]["podIP"]
        actors = {
            "client": (self.pools, "client"),
            "stranger beside it": (self.pools, "stranger"),
            "router": (self.others, "router"),
            "prometheus": (self.others, "prometheus"),
            "stranger elsewhere": (self.others, "stranger"),
            "operator": (self.release.system, self.operator()["metadata"]["name"]),
        }
        return {
            name: (connect(*actor, address, API), connect(*actor, address, METRICS)) for name, actor in actors.items()
        }


def connect(kubectl: Kubectl, pod: str, address: str, port: int, container: str | None = None) -> str:
    where = [pod] if container is None else [pod, f"--container={container}"]
    return kubectl.run("exec", *where, "--", "python3", "-B", "-c", PROBE, address, str(port)).strip()


WANTED = {
    "client": ("reached", "refused"),
    "stranger beside it": ("refused", "refused"),
    "router": ("reached", "refused"),
    "prometheus": ("refused", "reached"),
    "stranger elsewhere": ("refused", "refused"),
    "operator": ("refused", "reached"),
}


@pytest.fixture(scope="module")
def scene(release: Release, images: Images) -> Iterator[Scene]:
    """The operator with lists of who may come, a hub with the model, the actors, and the enforcer."""
    namespaces = [release.cluster.in_namespace(name) for name in (POOLS, OTHERS)]
    for kubectl in namespaces:
        remove_namespace(kubectl, borrowed=False)
        ensure_namespace(kubectl, borrowed=False)
    pools, others = namespaces
    scene = Scene(release, pools, others)
    try:
        scene.install(egress="Open")
        start_hub(pools, images.engine)
        give_token(pools)
        for kubectl, names in ((pools, ("client", "stranger")), (others, ("router", "prometheus", "stranger"))):
            kubectl.apply("---".join(ACTOR.format(name=name, image=images.operator) for name in names))
            kubectl.run("wait", "--for=condition=Ready", *(f"pod/{name}" for name in names), "--timeout=120s")
        pools.apply(json.dumps(MANIFEST))
        with enforcer.enforced(local_cluster()):
            yield scene
    finally:
        for kubectl in namespaces:
            remove_namespace(kubectl, "--wait=false", borrowed=False)
        release.install()


def wait_for_wanted(scene: Scene) -> None:
    """A policy takes a moment to be enforced."""
    wait_for("the policies to be enforced", lambda: scene.reached() == WANTED, 30, lambda: str(scene.reached()))


def fetched(pools: Kubectl) -> bool:
    """Whether the pool tells of its model, which the operator reads from the engine's metrics port."""
    status = (pools.get(POOL, NAME) or {}).get("status", {})
    return status.get("model", {}).get("revision") == stand_in_hub.COMMIT and "modelFetched" in status.get(
        "startup", {}
    )


def test_those_that_are_listed_pass_and_all_others_are_refused(scene: Scene) -> None:
    engine = scene.wait_for_engine()
    wait_for("the model to be told", lambda: fetched(scene.pools), 60, lambda: scene.pools.run("describe", POOL, NAME))

    wait_for_wanted(scene)

    operator = scene.operator()["status"]["podIP"]
    assert connect(scene.others, "prometheus", operator, OPERATOR_PORT) == "reached"
    assert connect(scene.others, "stranger", operator, OPERATOR_PORT + 1) == "refused"
    assert connect(scene.pools, engine["metadata"]["name"], operator, OPERATOR_PORT, "engine") == "reached"


def test_a_restricted_egress_lets_the_loader_fetch_and_nothing_else_out(scene: Scene) -> None:
    before = scene.wait_for_engine()
    scene.pools.apply(WAY_TO_HUB)
    scene.install(egress="Restricted")
    wait_for("the pool's policy", lambda: types(scene.pools) == ["Ingress", "Egress"], 30)
    assert scene.wait_for_engine()["metadata"]["uid"] == before["metadata"]["uid"]
    scene.pools.run("delete", "pod", before["metadata"]["name"])
    engine = scene.wait_for_engine()
    assert engine["metadata"]["uid"] != before["metadata"]["uid"]
    assert [container["name"] for container in engine["spec"]["initContainers"]], "no loader has fetched"

    wait_for_wanted(scene)

    name, operator = engine["metadata"]["name"], scene.operator()["status"]["podIP"]
    wait_for(
        "the engine to be kept in",
        lambda: connect(scene.pools, name, operator, OPERATOR_PORT, "engine") == "refused",
        30,
    )
    hub = (scene.pools.get("pod", "hub") or {})["status"]["podIP"]
    assert connect(scene.pools, name, hub, PORT, "engine") == "reached"


def types(pools: Kubectl) -> list[str]:
    types: list[str] = (pools.get("networkpolicy", NAME) or {})["spec"]["policyTypes"]
    return types
