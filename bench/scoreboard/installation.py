"""The product on a real cluster with stand-in engines, for the rows to work on."""

import json
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from images import builder, catalog
from images.build import build
from scripts import demo
from scripts.demo_ownership import ensure_namespace, remove_namespace
from tests.support.in_cluster_traffic import Running, traffic
from tests.support.kubectl import Kubectl, Object, condition, wait_for
from tests.support.operator_pods import leader, wait_for_operators
from tests.support.upgrades import write_next_charts

ROOT = Path(__file__).resolve().parents[2]
NAMESPACE, OTHER_NAMESPACE = "kvik-scoreboard", "kvik-scoreboard-other"
POOLS = "inferencepools.kvik.dev"
CHILDREN = (
    "deployments,replicasets,pods,services,serviceaccounts,poddisruptionbudgets,networkpolicies,controllerrevisions"
)
ENGINE, ENGINE_NEXT = (f"{catalog.LOCAL_PREFIX}kvik/stub-engine:{version}" for version in ("0.1.0", "0.2.0"))
TOKENS_PER_SECOND = 50
"""Of one stream."""


@dataclass(frozen=True, slots=True)
class Installation:
    cluster: demo.Cluster
    operator_image: str
    pools: Kubectl
    others: Kubectl
    """Another namespace, for pools whose namespace goes."""

    @classmethod
    def up(cls) -> Self:
        """The cluster, its images, both charts with two operators, and two namespaces that enforce `restricted`."""
        cluster = demo.cluster_up()
        operator = demo.ensure_images(cluster)["operator"].name
        for image in (ENGINE, ENGINE_NEXT):
            build(_stub_image(image, operator), builder.choose())
            demo.run("python3", "-m", "tests.cluster", "load", image)
        remove_namespace(cluster.in_namespace(demo.NAMESPACE), borrowed=False)
        namespaces = [cluster.in_namespace(name) for name in (NAMESPACE, OTHER_NAMESPACE)]
        installation = cls(cluster, operator, *namespaces)
        for kubectl in (cluster.in_namespace(demo.SYSTEM), *namespaces):
            ensure_namespace(kubectl, borrowed=False)
        installation.install()
        return installation

    def down(self) -> None:
        for kubectl in (self.pools, self.others):
            remove_namespace(kubectl, borrowed=False)
        self.uninstall()

    # --- the releases ---

    def install(self, engine: str = ENGINE, charts: Path = ROOT / "charts") -> None:
        """Installs or upgrades, and waits until the new operators are ready and no other is left.

        `engine` is the image for CPU pools.
        """
        self.cluster.run_helm("upgrade", "--install", "kvik-crds", str(charts / "kvik-crds"))
        sets = {
            "image.operator.repository": self.operator_image.rpartition(":")[0],
            "image.operator.tag": self.operator_image.rpartition(":")[2],
            "image.engine.cpu.repository": engine.rpartition(":")[0],
            "image.engine.cpu.tag": engine.rpartition(":")[2],
            "image.pullPolicy": "Never",
            "operator.replicas": "2",
        }
        flags = [f"--set={name}={value}" for name, value in sets.items()]
        release = ["upgrade", "--install", "kvik", str(charts / "kvik"), *flags]
        self.cluster.run_helm(*release, "--wait", "--timeout=180s")
        wait_for_operators(self.system)

    def install_next_charts(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            self.install(charts=write_next_charts(Path(folder)))

    def uninstall(self) -> None:
        self.cluster.run_helm("uninstall", "kvik", "--wait", "--timeout=60s", "--ignore-not-found")

    @property
    def system(self) -> Kubectl:
        return self.cluster.in_namespace(demo.SYSTEM)

    def leader(self) -> str | None:
        return leader(self.system)

    # --- pools ---

    def apply(self, kubectl: Kubectl, name: str, **spec: Any) -> None:
        kubectl.apply(json.dumps(pool(name, **spec)))

    def patch(self, kubectl: Kubectl, name: str, spec: Mapping[str, Any]) -> None:
        kubectl.run("patch", POOLS, name, "--type=merge", f"--patch={json.dumps({'spec': spec})}")

    def settled(self, kubectl: Kubectl, name: str, replicas: int) -> bool:
        """So many pods, all of them ready, the last change carried out, and none that still drains."""
        found = kubectl.get(POOLS, name)
        complete = condition(found, "RolloutComplete")
        return (
            found is not None
            and complete is not None
            and complete["status"] == "True"
            and complete["observedGeneration"] == found["metadata"]["generation"]
            and found["status"].get("readyReplicas") == replicas
            and len(engine_pods(kubectl, name)) == replicas
        )

    def wait_settled(self, kubectl: Kubectl, name: str, replicas: int, seconds: float = 240) -> None:
        wait_for(
            f"{replicas} ready pods of {name}",
            lambda: self.settled(kubectl, name, replicas),
            seconds,
            lambda: kubectl.run("get", f"{POOLS},pods") + kubectl.run("describe", POOLS, name),
        )

    def ensure_pool(self, kubectl: Kubectl, name: str, replicas: int = 2) -> None:
        """As every row wants to find it."""
        self.apply(kubectl, name, replicas=replicas)
        self.wait_settled(kubectl, name, replicas)

    def traffic(
        self, kubectl: Kubectl, pool: str, pod: str, *, clients: int, max_tokens: int, model: str = "stub"
    ) -> AbstractContextManager[Running]:
        """Sent from a pod `pod` beside the pools that stay."""
        url = f"http://{pool}.{kubectl.namespace}.svc.cluster.local.:8000/v1"
        return traffic(self.pools, ENGINE, pod, url, model, clients=clients, words=6, max_tokens=max_tokens)


def pool(name: str, **spec: Any) -> Mapping[str, Any]:
    """Of stand-in engines that take little of the machine."""
    env = {"STUB_TOKENS_PER_SECOND": TOKENS_PER_SECOND, "STUB_READY_AFTER": 1}
    base: dict[str, Any] = {
        "model": {"source": "file:///models/stub/model.gguf", "name": "stub"},
        "resources": {
            "device": "CPU",
            "requests": {"cpu": "300m", "memory": "64Mi"},
            "limits": {"memory": "256Mi"},
        },
        "batching": {"maxRequests": 64},
        "drain": {"timeout": "30s"},
        "template": {"env": [{"name": key, "value": str(value)} for key, value in env.items()]},
    }
    return {"apiVersion": "kvik.dev/v1alpha1", "kind": "InferencePool", "metadata": {"name": name}, "spec": base | spec}


def engine_pods(kubectl: Kubectl, name: str) -> Sequence[Object]:
    return kubectl.list("pods", f"kvik.dev/pool={name}")


def _stub_image(name: str, operator: str) -> catalog.Image:
    return catalog.Image(
        name=name,
        containerfile=ROOT / "tests/support/stub_engine/Containerfile",
        context={"tests/support/stub_engine": ROOT / "tests/support/stub_engine"},
        arguments={"OPERATOR": operator, "VERSION": name.rpartition(":")[2]},
        needs_base=False,
    )
