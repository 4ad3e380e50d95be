"""The real cluster with the charts installed, and a namespace that enforces `restricted`.

The release is the one `make demo` uses (one operator may watch all namespaces), so these tests end a demo that runs.
On a cluster that others use (CLUSTER=existing) they refuse, as the demo does, to touch what somebody else installed.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from images import catalog
from scripts import demo
from scripts.demo_ownership import ensure_namespace, remove_namespace
from tests.support.kubectl import Kubectl
from tests.support.operator_pods import wait_for_no_operator

POOL_NAMESPACE = "kvik-e2e"


@dataclass(frozen=True, slots=True)
class Images:
    operator: str
    engine: str
    """The CPU engine with the demo's model in it."""


@dataclass(frozen=True, slots=True)
class Release:
    """The installed charts, so that a test can uninstall one."""

    cluster: demo.Cluster
    system: Kubectl

    def install(self, *flags: str) -> None:
        """Installs or upgrades, with helm's flags for the operator's chart in place of those of the time before.

        Returns once the operators that have them are ready, and alone.
        """
        demo.install(self.cluster, catalog.product(self.cluster.image_prefix), *flags)

    def uninstall(self, *flags: str) -> None:
        """Returns once its pods are gone as well, for which helm does not wait."""
        self.cluster.run_helm("uninstall", "kvik", "--wait", "--timeout=60s", *flags)
        wait_for_no_operator(self.system)

    def uninstall_if_there(self) -> None:
        self.uninstall("--ignore-not-found")


@pytest.fixture(scope="session")
def cluster() -> demo.Cluster:
    """The cluster that CLUSTER names, running."""
    return demo.cluster_up()


@pytest.fixture(scope="session")
def images(cluster: demo.Cluster) -> Images:
    """Built from this tree, unless they are there already, and in the cluster."""
    products = demo.ensure_images(cluster)
    return Images(operator=products["operator"].name, engine=products["demo"].name)


@pytest.fixture(scope="session")
def system(cluster: demo.Cluster, images: Images) -> Kubectl:
    """The operator's namespace on a cluster that has the images."""
    return cluster.in_namespace(demo.SYSTEM)


@pytest.fixture(scope="session")
def release(cluster: demo.Cluster, system: Kubectl) -> Release:
    """Both charts, installed or upgraded to this tree. A demo's pool would only take the cores away."""
    demo.refuse_foreign_operator(cluster)
    remove_namespace(cluster.in_namespace(demo.NAMESPACE), borrowed=cluster.borrowed)
    release = Release(cluster, system)
    release.install()
    return release


@pytest.fixture(scope="session")
def pools(release: Release) -> Iterator[Kubectl]:
    """The namespace of the test's pools; it refuses every pod that is not `restricted`."""
    pools, borrowed = release.cluster.in_namespace(POOL_NAMESPACE), release.cluster.borrowed
    remove_namespace(pools, borrowed=borrowed)
    ensure_namespace(pools, borrowed=borrowed)
    yield pools
    remove_namespace(pools, "--wait=false", borrowed=borrowed)
