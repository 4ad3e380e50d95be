"""A model from a hub into a pod: the container that fetches it, its token, and what the pool says of it.

The hub is that of tests/support/hub_in_cluster.py, which wants a token.
"""

import json
from collections.abc import Iterator

import pytest

from tests.e2e.conftest import Images, Release
from tests.support import stand_in_hub
from tests.support.hub_in_cluster import SECRET, TOKEN, give_token, hub_url, remove_hub, start_hub
from tests.support.kubectl import Kubectl, condition, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

POOL = "inferencepools.kvik.dev"
NAME = "from-hub"


@pytest.fixture
def hub(release: Release, pools: Kubectl, images: Images) -> Iterator[None]:
    """The hub runs, and the operator sends fetching containers to it."""
    start_hub(pools, images.engine)
    release.install(f"--set=huggingFace.endpoint={hub_url(pools)}")
    yield
    release.install()
    pools.run("delete", POOL, NAME, "--ignore-not-found")
    remove_hub(pools)


def wait_ready(pools: Kubectl, status: str, reason: str, seconds: float) -> str:
    """The message of the condition Ready once it has this status and reason."""

    def told() -> str | None:
        found = condition(pools.get(POOL, NAME), "Ready")
        return found["message"] if found and (found["status"], found["reason"]) == (status, reason) else None

    return wait_for(
        f"Ready={status}/{reason}", told, seconds, lambda: pools.run("describe", POOL, NAME) + pools.run("get", "pods")
    )


def test_a_model_comes_from_the_hub_once_the_token_is_right(hub: None, pools: Kubectl) -> None:
    model = {"source": f"hf://{stand_in_hub.REPOSITORY}@main"}
    spec = {
        "model": model,
        "kvCache": {"size": "64Mi"},
        "resources": {"device": "CPU", "requests": {"cpu": "100m", "memory": "2500Mi"}},
        "startup": {"timeout": "180s"},
        "drain": {"timeout": "5s"},
    }
    manifest = {"apiVersion": "kvik.dev/v1alpha1", "kind": "InferencePool", "metadata": {"name": NAME}, "spec": spec}
    pools.apply(json.dumps(manifest))
    message = wait_ready(pools, "False", "DownloadDenied", 40)
    assert stand_in_hub.REPOSITORY in message

    give_token(pools)
    model |= {"secretRef": {"name": SECRET}}
    pools.apply(json.dumps(manifest))
    wait_ready(pools, "True", "PodsReady", 180)

    def read() -> dict[str, dict[str, str]] | None:
        pool = pools.get(POOL, NAME)
        assert pool is not None
        status: dict[str, dict[str, str]] = pool["status"]
        return status if "revision" in status.get("model", {}) and "startup" in status else None

    status = wait_for("the pool to tell of its model", read, 30)
    assert status["model"]["revision"] == stand_in_hub.COMMIT
    assert "modelFetched" in status["startup"]
    pods = pools.list("pods", f"kvik.dev/pool={NAME}")  # the one without a token may not be gone yet
    pod = next(item for item in pods if (condition(item, "Ready") or {}).get("status") == "True")
    engine = next(item for item in pod["spec"]["containers"] if item["name"] == "engine")
    assert TOKEN not in json.dumps(pod)
    assert "model-token" not in [mount["name"] for mount in engine["volumeMounts"]]
