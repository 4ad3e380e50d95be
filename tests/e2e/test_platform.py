"""What the product stands on: the cluster and the images, before the operator comes into play."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest

from scripts import demo
from scripts.demo_ownership import ensure_namespace, remove_namespace
from tests.cluster import node
from tests.cluster.cleanup import STOP_ORDER
from tests.cluster.paths import local_cluster
from tests.cluster.processes import read_record
from tests.support.in_cluster_traffic import run_python
from tests.support.kubectl import Kubectl, condition, wait_for

ROOT = Path(__file__).resolve().parents[2]
NAMESPACE = "kvik-platform"
SLEEPER = """
apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  terminationGracePeriodSeconds: 0
  securityContext: {{runAsNonRoot: true, runAsUser: 65532, seccompProfile: {{type: RuntimeDefault}}}}
  containers:
  - name: sleeper
    image: {image}
    imagePullPolicy: IfNotPresent
    command: [sleep, "600"]
    resources: {{limits: {{nvidia.com/gpu: {gpus}}}}}
    securityContext: {{allowPrivilegeEscalation: false, capabilities: {{drop: [ALL]}}}}
"""


class Images(Protocol):
    operator: str
    engine: str


@pytest.fixture(scope="module")
def kubectl(cluster: demo.Cluster, system: Kubectl) -> Iterator[Kubectl]:
    """A namespace of its own, restricted, on a cluster that has the images."""
    own, borrowed = cluster.in_namespace(NAMESPACE), cluster.borrowed
    remove_namespace(own, borrowed=borrowed)
    ensure_namespace(own, borrowed=borrowed)
    yield own
    remove_namespace(own, "--wait=false", borrowed=borrowed)


def test_pods_get_as_many_accelerators_as_the_node_has_and_no_more(kubectl: Kubectl, images: Images):
    kubectl.apply(SLEEPER.format(name="four", image=images.operator, gpus=4))
    wait_for("the first pod to run", lambda: phase(kubectl, "four") == "Running", 60)
    kubectl.apply(SLEEPER.format(name="one-more", image=images.operator, gpus=1))
    refused = wait_for("the scheduler's word", lambda: condition(kubectl.get("pod", "one-more"), "PodScheduled"), 30)
    assert refused["reason"] == "Unschedulable"
    assert "nvidia.com/gpu" in refused["message"]


def phase(kubectl: Kubectl, name: str) -> str | None:
    pod = kubectl.get("pod", name)
    return None if pod is None else pod["status"].get("phase")


@pytest.mark.skipif(
    os.environ.get("CLUSTER", "local") != "local", reason="only our own cluster's programs have records"
)
def test_bringing_up_a_running_cluster_restarts_nothing(system: Kubectl):
    records = local_cluster().pids
    before = {path.name: read_record(path) for path in records.iterdir()}
    subprocess.run([sys.executable, "-m", "tests.cluster", "up"], cwd=ROOT, check=True)
    assert {path.name: read_record(path) for path in records.iterdir()} == before
    assert set(STOP_ORDER) <= before.keys()


def test_services_are_found_by_name_from_a_pod(kubectl: Kubectl, images: Images):
    program = "import socket; print(socket.gethostbyname('kube-dns.kube-system.svc.cluster.local'))"
    assert run_python(kubectl, images.operator, "resolver", program).strip() == node.DNS_ADDRESS


def test_the_operators_image_holds_no_torch_and_runs_without_rights(kubectl: Kubectl, images: Images):
    program = "import getpass, os, importlib.util as u; print(os.getuid(), getpass.getuser(), u.find_spec('torch'))"
    assert run_python(kubectl, images.operator, "operator-image", program).split() == ["65532", "kvik", "None"]


def test_the_cpu_engines_image_computes_without_triton_and_brings_its_model(kubectl: Kubectl, images: Images):
    program = (
        "import importlib.util as u, os, shutil, torch\n"
        "a = torch.eye(8); assert torch.equal(a @ a, a)\n"
        "model = sorted(os.listdir('/models/smollm2-135m-instruct'))\n"
        "print(os.getuid(), u.find_spec('triton'), shutil.which('cc'), *model)"
    )
    said = run_python(kubectl, images.engine, "engine-image", program).split()
    assert said == ["65532", "None", "None", "LICENSE", "NOTICE", "model.gguf"]
