"""What ends pods of the real engine, each once under traffic; with a stand-in and much more of it: bench/scoreboard.

Each test builds on those before it. None waits until all pods are ready again: the next change has to bear that too.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.conftest import Images
from tests.support.in_cluster_traffic import traffic
from tests.support.kubectl import Kubectl, condition, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "smollm2.yaml"
POOL = "inferencepools.kvik.dev"
NAME = "two"
MODEL = "smollm2-135m-instruct"
PODS = f"kvik.dev/pool={NAME}"
CHOSEN = "kvik.test/chosen"
LEAST_REQUESTS = 5
START_SECONDS = 120


@pytest.fixture(scope="module")
def two(pools: Kubectl) -> Iterator[Kubectl]:
    """A pool of two pods of the example's engine, which nobody scales and which measure nothing when they start."""
    example = yaml.safe_load(EXAMPLE.read_text())
    spec = {name: value for name, value in example["spec"].items() if name != "scaling"}
    more = {"model": {**spec["model"], "dtype": "BF16"}, "replicas": 2, "rollout": {"strategy": "InPlace"}}
    pools.apply(yaml.safe_dump({**example, "metadata": {"name": NAME}, "spec": {**spec, **more}}))
    wait_for("both pods to be ready", lambda: len(ready(pools)) == 2, START_SECONDS, lambda: describe(pools))
    yield pools
    pools.run("delete", POOL, NAME)


def ready(kubectl: Kubectl) -> dict[str, Any]:
    """The pool's ready pods that are not ending, by name."""
    return {
        pod["metadata"]["name"]: pod
        for pod in kubectl.list("pods", PODS)
        if "deletionTimestamp" not in pod["metadata"] and (condition(pod, "Ready") or {}).get("status") == "True"
    }


def describe(kubectl: Kubectl) -> str:
    return kubectl.run("describe", POOL, NAME) + kubectl.run("get", "pods,events", "--output=wide")


@contextmanager
def no_request_fails(kubectl: Kubectl, images: Images, name: str) -> Iterator[None]:
    """Of two clients that stream one short answer after the other for as long as the block runs."""
    url = f"http://{NAME}.{kubectl.namespace}.svc.cluster.local:8000/v1"
    with traffic(kubectl, images.engine, name, url, MODEL, clients=2, words=8, max_tokens=8) as running:
        yield
    assert running.result.failures == []
    assert running.result.succeeded >= LEAST_REQUESTS


@pytest.mark.skipif(os.environ.get("CLUSTER", "local") != "local", reason="cordons a node")
def test_kubectl_drain_fails_no_request(two: Kubectl, images: Images) -> None:
    """Of one pod, since a cluster of one node has no place for others while it is drained; bench/scoreboard has two."""
    pod, found = next(iter(ready(two).items()))
    node = found["spec"]["nodeName"]
    two.run("label", "pod", pod, f"{CHOSEN}=true")
    flags = (f"--pod-selector={CHOSEN}", "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=120s")
    with no_request_fails(two, images, "drained"):
        try:
            said = two.run("drain", node, *flags, timeout=150)
        finally:
            two.run("uncordon", node)
    assert f"pod/{pod} evicted" in said
    assert two.get("pod", pod) is None


def test_kubectl_kvik_drain_waits_for_the_other_pod_and_fails_no_request(two: Kubectl, images: Images) -> None:
    """The Eviction API: the disruption budget holds it back while the pod of the test before is not replaced yet."""
    pod = next(iter(ready(two)))
    with no_request_fails(two, images, "evicted"):
        flags = (f"--kubeconfig={two.kubeconfig}", f"--namespace={two.namespace}", "--timeout=3m")
        run = [sys.executable, "-m", "kvik_kubectl", "drain", pod, *flags]
        said = subprocess.run(run, capture_output=True, text=True, timeout=300, check=True).stdout
    assert f"pod {pod} is gone after " in said
    assert two.get("pod", pod) is None
    assert ready(two), "the pod that it waited for"


def test_a_roll_in_place_fails_no_request(two: Kubectl, images: Images) -> None:
    """Until the last pod of before is gone; there is only one of the new ones to take over from it."""
    before = {pod["metadata"]["name"] for pod in two.list("pods", PODS)}

    def rolled() -> bool:
        return bool(ready(two)) and not before & {pod["metadata"]["name"] for pod in two.list("pods", PODS)}

    with no_request_fails(two, images, "in-place"):
        two.run("patch", POOL, NAME, "--type=merge", '--patch={"spec":{"batching":{"chunkedPrefillTokens":64}}}')
        wait_for("no pod of before to be left", rolled, 2 * START_SECONDS, lambda: describe(two))
