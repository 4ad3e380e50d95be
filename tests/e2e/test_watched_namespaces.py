"""The two ways to install: an operator for listed namespaces, by a Role in each, and one for all, by a ClusterRole."""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from scripts.demo_ownership import ensure_namespace, remove_namespace
from tests.cluster.paths import local_cluster
from tests.e2e.conftest import Release
from tests.support.audit_log import AuditLog
from tests.support.kubectl import Kubectl, KubectlError, condition, wait_for
from tests.support.upgrades import identity

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

POOL = "inferencepools.kvik.dev"
NAME = "watched"
SERVED, OTHER = "kvik-e2e-served", "kvik-e2e-other"
LISTED = f"--set=watch.namespaces={{{SERVED}}}"
ACCOUNT = "system:serviceaccount:kvik-system:kvik-operator"
MANIFEST = {
    "apiVersion": "kvik.dev/v1alpha1",
    "kind": "InferencePool",
    "metadata": {"name": NAME},
    "spec": {
        "model": {"source": "file:///models/smollm2-135m-instruct/model.gguf"},
        "kvCache": {"size": "64Mi"},
        "resources": {"device": "CPU", "requests": {"cpu": "100m", "memory": "2500Mi"}},
        "startup": {"timeout": "120s"},
        "drain": {"timeout": "5s"},
    },
}


@dataclass(frozen=True, slots=True)
class Namespaces:
    """Each with a pool of the same name."""

    served: Kubectl
    other: Kubectl


@pytest.fixture(scope="module")
def namespaces(release: Release) -> Iterator[Namespaces]:
    """Their pools are there before any operator is."""
    both = [release.cluster.in_namespace(name) for name in (SERVED, OTHER)]
    borrowed = release.cluster.borrowed
    release.uninstall_if_there()
    for kubectl in both:
        remove_namespace(kubectl, borrowed=borrowed)
        ensure_namespace(kubectl, borrowed=borrowed)
        kubectl.apply(json.dumps(MANIFEST))
    yield Namespaces(*both)
    for kubectl in both:
        remove_namespace(kubectl, "--wait=false", borrowed=borrowed)
    release.uninstall_if_there()


def wait_ready(kubectl: Kubectl) -> None:
    wait_for(
        f"the pool in {kubectl.namespace} to be Ready",
        lambda: (condition(kubectl.get(POOL, NAME), "Ready") or {}).get("status") == "True",
        90,
        lambda: kubectl.run("describe", POOL, NAME) + kubectl.run("get", "pods,events"),
    )


def may(kubectl: Kubectl, verb: str, kind: str) -> bool:
    """Whether the operator may do this in the namespace."""
    try:
        return kubectl.run("auth", "can-i", verb, kind, f"--as={ACCOUNT}").strip() == "yes"
    except KubectlError:  # "no" is exit code 1
        return False


def test_an_operator_for_listed_namespaces_serves_them_and_asks_about_no_other(
    release: Release, namespaces: Namespaces
) -> None:
    served, other = namespaces.served, namespaces.other
    log = audit_log()

    release.install(LISTED)
    wait_ready(served)

    pool = other.get(POOL, NAME)
    assert pool is not None
    assert "status" not in pool
    assert "finalizers" not in pool["metadata"]
    assert other.list("deployments,pods,services", f"kvik.dev/pool={NAME}") == []
    assert may(served, "list", POOL)
    assert may(served, "create", "deployments.apps")
    for verb, kind in (("list", POOL), ("create", "deployments.apps"), ("get", "pods")):
        assert not may(other, verb, kind)
    assert served.list("clusterroles,clusterrolebindings", "app.kubernetes.io/instance=kvik") == []
    if log is not None:
        asked = log.asked_by(ACCOUNT)
        assert {request.namespace for request in asked} == {SERVED, release.system.namespace}, asked


def audit_log() -> AuditLog | None:
    """None on a cluster that is not our own."""
    return AuditLog.from_now(local_cluster().audit_log) if os.environ.get("CLUSTER", "local") == "local" else None


@pytest.mark.long
def test_an_operator_that_comes_to_watch_all_namespaces_serves_the_others_and_leaves_them_as_they_are_when_it_goes_back(
    release: Release, namespaces: Namespaces
) -> None:
    served, other = namespaces.served, namespaces.other
    release.install()
    wait_ready(other)
    wait_ready(served)
    assert may(other, "create", "deployments.apps")
    before = identity(other, NAME)

    release.install(LISTED)
    for kubectl in (other, served):
        kubectl.run("patch", POOL, NAME, "--type=merge", '--patch={"spec":{"batching":{"maxRequests":8}}}')
    wait_for("the served pool's change to be seen", lambda: is_seen(served), 30, lambda: served.run("get", "events"))

    assert not is_seen(other)
    assert identity(other, NAME) == before
    assert not may(other, "list", POOL)


def is_seen(kubectl: Kubectl) -> bool:
    pool = kubectl.get(POOL, NAME)
    return pool is not None and pool["status"]["observedGeneration"] == pool["metadata"]["generation"]
