"""KEDA itself on the cluster: its own manifests, and its programs from the source of the same Go module."""

import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from images import builder
from images.build import build
from images.catalog import Image
from scripts import demo
from tests.cluster.build import keda
from tests.support.keda_module import manifests
from tests.support.kubectl import Kubectl

NAMESPACE = "keda"
IMAGE = "localhost/kvik/keda:2.21.0"
CONTAINERFILE = Path(__file__).resolve().parents[1] / "cluster" / "images" / "keda" / "Containerfile"
EXTERNAL_METRICS = "apiservice/v1beta1.external.metrics.k8s.io"
READY_SECONDS = 180


@contextmanager
def installed(cluster: demo.Cluster) -> Iterator[None]:
    """KEDA, ready, and gone afterwards with its API. A first time builds it (ten minutes on two cores)."""
    _load_image()
    kubectl = cluster.in_namespace(NAMESPACE)
    objects = adapted(yaml.safe_load_all(kubectl.run("kustomize", str(manifests()))))
    # kubectl wants to hear the namespace of what it is given: nearly all is KEDA's own, or in none.
    lists = {namespace: _list(objects, namespace) for namespace in (NAMESPACE, "kube-system")}
    try:
        for namespace, listed in lists.items():
            # The CRDs are too large for the annotation of a client-side apply.
            cluster.in_namespace(namespace).run("apply", "--server-side", "--filename=-", stdin=listed)
        _wait_until_ready(kubectl)
        yield
    finally:
        for namespace, listed in reversed(lists.items()):
            cluster.in_namespace(namespace).run(
                "delete", "--ignore-not-found", "--filename=-", stdin=listed, timeout=300
            )


def adapted(manifests: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Our image, one replica that asks for no Lease, ready as soon as it is; and no admission webhooks."""
    kept = [one for one in manifests if "admission" not in one["metadata"]["name"]]
    for deployment in (one for one in kept if one["kind"] == "Deployment"):
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        container |= {"image": IMAGE, "imagePullPolicy": "Never"}
        container["args"] = [argument for argument in container["args"] if argument != "--leader-elect"]
        container["readinessProbe"]["initialDelaySeconds"] = 1
    return kept


def _list(objects: Iterable[dict[str, Any]], namespace: str) -> str:
    items = [one for one in objects if one["metadata"].get("namespace", NAMESPACE) == namespace]
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": items})


def _load_image() -> None:
    programs = keda()
    context = {"keda": programs / "operator", "keda-adapter": programs / "adapter"}
    build(Image(IMAGE, CONTAINERFILE, context, needs_base=False), builder.choose())
    demo.run(sys.executable, "-m", "tests.cluster", "load", IMAGE)


def _wait_until_ready(kubectl: Kubectl) -> None:
    """It makes its own certificates first, and starts again with them."""
    patience = f"--timeout={READY_SECONDS}s"
    for deployment in ("keda-operator", "keda-metrics-apiserver"):
        kubectl.run("rollout", "status", f"deployment/{deployment}", patience, timeout=READY_SECONDS + 20)
    kubectl.run("wait", "--for=condition=Available", EXTERNAL_METRICS, patience, timeout=READY_SECONDS + 20)
