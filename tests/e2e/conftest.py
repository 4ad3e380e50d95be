"""The real cluster with the chart installed, and a namespace that enforces `restricted`.

The release is the one `make demo` uses (one operator may watch all namespaces), so these tests end a demo that runs.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from images import catalog

from tests.cluster import build
from tests.cluster.paths import local_cluster
from tests.support.kubectl import Kubectl

ROOT = Path(__file__).resolve().parents[2]
SYSTEM_NAMESPACE = "kvik-system"
POOL_NAMESPACE = "kvik-e2e"


@dataclass(frozen=True, slots=True)
class Images:
    operator: str
    engine: str
    """The CPU engine with the demo's model in it."""


@dataclass(frozen=True, slots=True)
class Release:
    """How the chart was installed, so that a test can uninstall it."""

    helm: list[str]
    system: Kubectl

    def uninstall(self) -> None:
        subprocess.run([*self.helm, "uninstall", "kvik", "--wait", "--timeout=60s"], check=True)


@pytest.fixture(scope="session")
def images() -> Images:
    """Built from this tree, unless they are there already."""
    products = catalog.product(os.environ.get("IMAGE_PREFIX", catalog.LOCAL_PREFIX))
    subprocess.run([sys.executable, "-m", "images", "operator", "demo"], cwd=ROOT, check=True)
    return Images(operator=products["operator"].name, engine=products["demo"].name)


@pytest.fixture(scope="session")
def system(images: Images) -> Kubectl:
    """The running cluster, with the images in it."""
    for command in (["up"], ["load", images.operator, images.engine]):
        subprocess.run([sys.executable, "-m", "tests.cluster", *command], cwd=ROOT, check=True)
    return Kubectl(build.programs().kubectl, local_cluster().kubeconfig, SYSTEM_NAMESPACE)


@pytest.fixture(scope="session")
def release(system: Kubectl) -> Release:
    """Both charts, installed or upgraded to this tree."""
    helm = [
        str(build.programs().helm),
        f"--kubeconfig={system.kubeconfig}",
        f"--namespace={SYSTEM_NAMESPACE}",
    ]
    for arguments in (
        ["kvik-crds", "charts/kvik-crds"],
        ["kvik", "charts/kvik", "--values=examples/local-values.yaml"],
    ):
        subprocess.run(
            [*helm, "upgrade", "--install", "--create-namespace", "--wait", "--timeout=120s", *arguments],
            cwd=ROOT,
            check=True,
        )
    return Release(helm, system)


@pytest.fixture(scope="session")
def pools(release: Release) -> Iterator[Kubectl]:
    """The namespace of the test's pools; it refuses every pod that is not `restricted`."""
    system = release.system
    system.run("delete", "namespace", POOL_NAMESPACE, "--ignore-not-found", timeout=180)
    system.run("create", "namespace", POOL_NAMESPACE)
    system.run("label", "namespace", POOL_NAMESPACE, "pod-security.kubernetes.io/enforce=restricted")
    yield Kubectl(system.program, system.kubeconfig, POOL_NAMESPACE)
    system.run("delete", "namespace", POOL_NAMESPACE, "--ignore-not-found", "--wait=false")
