"""Pools that cannot run say why, in their status, within 30 s, and recover by themselves once the cause is gone."""

import json
from typing import Any

import pytest

from tests.support.kubectl import Kubectl, condition, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

POOL = "inferencepools.kvik.dev"
MODEL_FILE = "file:///models/smollm2-135m-instruct/model.gguf"


def pool(name: str, spec: dict[str, Any]) -> str:
    """A small CPU pool with `spec` merged over it at the first level."""
    small = {
        "model": {"source": MODEL_FILE},
        "kvCache": {"size": "64Mi"},
        "resources": {"device": "CPU", "requests": {"cpu": "100m", "memory": "2500Mi"}},
        "startup": {"timeout": "120s"},
        "drain": {"timeout": "5s"},
    }
    return json.dumps(
        {"apiVersion": "kvik.dev/v1alpha1", "kind": "InferencePool", "metadata": {"name": name}, "spec": small | spec}
    )


def wait_for_reason(kubectl: Kubectl, name: str, reason: str) -> str:
    """The message of Ready=False for that reason, of one reading: the reason may change while a container restarts."""

    def told() -> str | None:
        found = condition(kubectl.get(POOL, name), "Ready")
        return found["message"] if found and (found["status"], found["reason"]) == ("False", reason) else None

    return wait_for(
        f"{name} to say {reason}",
        told,
        30,
        lambda: kubectl.run("describe", POOL, name) + kubectl.run("get", "pods,events"),
    )


def test_a_model_that_is_not_there_is_named_and_the_pool_recovers_when_it_is_mended(pools: Kubectl) -> None:
    pools.apply(pool("no-model", {"model": {"source": "file:///models/nowhere/model.gguf"}}))

    message = wait_for_reason(pools, "no-model", "ModelNotFound")
    assert "/models/nowhere/model.gguf" in message

    pools.run("patch", POOL, "no-model", "--type=merge", f'--patch={{"spec":{{"model":{{"source":"{MODEL_FILE}"}}}}}}')
    wait_for(
        "the pool to recover",
        lambda: (condition(pools.get(POOL, "no-model"), "Ready") or {}).get("status") == "True",
        120,
        lambda: pools.run("describe", POOL, "no-model"),
    )
    pools.run("delete", POOL, "no-model")


def test_files_that_are_not_what_the_digest_names_are_refused(pools: Kubectl) -> None:
    pools.apply(pool("digest", {"model": {"source": MODEL_FILE, "digest": "sha256:" + "0" * 64}}))

    assert "sha256:" in wait_for_reason(pools, "digest", "DigestMismatch")
    pools.run("delete", POOL, "digest")


def test_more_cpu_than_any_node_has_is_unschedulable(pools: Kubectl) -> None:
    pools.apply(pool("greedy", {"resources": {"device": "CPU", "requests": {"cpu": "500", "memory": "2500Mi"}}}))

    assert "Insufficient cpu" in wait_for_reason(pools, "greedy", "Unschedulable")
    pools.run("delete", POOL, "greedy")


def test_an_image_that_cannot_be_pulled_is_named(pools: Kubectl) -> None:
    """The GPU engine is not among the images that these tests give to the cluster."""
    pools.apply(pool("no-image", {"resources": {"device": "GPU", "requests": {"cpu": "100m", "memory": "100Mi"}}}))

    assert "kvik/engine" in wait_for_reason(pools, "no-image", "ImagePullFailed")
    pools.run("delete", POOL, "no-image")


def test_too_little_memory_is_told_by_the_engine_instead_of_a_kill(pools: Kubectl) -> None:
    resources = {"device": "CPU", "requests": {"cpu": "100m", "memory": "1Gi"}}
    pools.apply(pool("small", {"resources": resources, "kvCache": {"size": "900Mi"}}))

    assert wait_for_reason(pools, "small", "InsufficientMemory")
    pools.run("delete", POOL, "small")
