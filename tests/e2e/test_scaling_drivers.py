"""Each driver carries one scene with the real engine: load takes a pool from one pod to three, and its end back to one.

No request fails on the way, the status tells of every step, and the operator is killed in the middle of it.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.conftest import Images, Release
from tests.support import keda_in_cluster
from tests.support.in_cluster_traffic import traffic
from tests.support.kubectl import Kubectl, condition, wait_for

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.long,
    pytest.mark.timeout(2400),
    pytest.mark.skipif(os.environ.get("CLUSTER", "local") == "existing", reason="installs KEDA and metrics APIs"),
]

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "smollm2.yaml"
POOL = "inferencepools.kvik.dev"
NAME = "smollm2"
MODEL = "smollm2-135m-instruct"
URL = f"http://{NAME}.kvik-e2e.svc.cluster.local:8000/v1"
PODS = f"kvik.dev/pool={NAME}"
MOST = 3
HPA = "horizontalpodautoscalers.autoscaling"
FLAGS = {"HPA": "--set=metricsAPI.enabled=true,operator.replicas=2", "KEDA": "--set=keda.enabled=true"}
"""Of helm, by driver."""
AUTOSCALERS = {"HPA": NAME, "KEDA": f"keda-hpa-{NAME}"}
"""The HorizontalPodAutoscaler that writes the pool's replicas, by driver; with Native the operator does."""


@pytest.fixture(params=["Native", "HPA", "KEDA"])
def driver(request: pytest.FixtureRequest, release: Release) -> Iterator[str]:
    """The release has, and the cluster runs, what the driver needs."""
    with ExitStack() as means:
        if request.param == "KEDA":
            means.enter_context(keda_in_cluster.installed(release.cluster))
        if flag := FLAGS.get(request.param):
            means.callback(release.install)
            release.install(flag)
        yield request.param


def test_load_takes_a_pool_to_three_pods_and_back_whoever_carries_it_out(
    driver: str, pools: Kubectl, images: Images, release: Release
) -> None:
    def explain() -> str:
        return described(pools, release.system)

    pools.apply(pool(driver))
    try:
        wait_for("one pod", lambda: ready(pools) == 1 and scales(pools), 120, explain)
        with load(pools, images, "light", clients=3, words=8, max_tokens=8) as light:
            with load(pools, images, "heavy", clients=64, words=60, max_tokens=96) as heavy:
                wait_for("a first step that is told", lambda: steps(pools), 90, explain)
                kill_operators(release)
                wait_for("three pods", lambda: asked_for(pools) == MOST, 180, explain)
                wait_for("all of them to be ready", lambda: ready(pools) == MOST, 240, explain)
                wait_for("the autoscaler to be well", lambda: scales(pools), 60, explain)
            wait_for("one pod again", lambda: len(pools.list("pods", PODS)) == 1 == asked_for(pools), 300, explain)
        wait_for("the last step to be told", lambda: steps(pools)[-1][1] == 1, 60, explain)

        assert (heavy.result.failures, light.result.failures) == ([], [])
        assert light.result.succeeded >= 20
        path = steps(pools)
        assert path[0][0] == 1, path
        assert max(after for _, after in path) == MOST, path
        assert [after for _, after in path][:-1] == [before for before, _ in path][1:], path
        assert all(" of full x " in step["formula"] for step in history(pools)), history(pools)
        if driver in AUTOSCALERS:
            assert_reads_sensibly(pools.get(HPA, AUTOSCALERS[driver]))
    finally:
        pools.run("delete", POOL, NAME, "--ignore-not-found", timeout=180)
        wait_for("its pods to be gone", lambda: not pools.list("pods", PODS), 120)


def pool(driver: str) -> str:
    example = yaml.safe_load(EXAMPLE.read_text())
    example["spec"]["scaling"] |= {"driver": driver, "maxReplicas": MOST}
    return yaml.safe_dump(example)


@contextmanager
def load(pools: Kubectl, images: Images, name: str, *, clients: int, words: int, max_tokens: int) -> Iterator[Any]:
    lengths = {"words": words, "max_tokens": max_tokens}
    with traffic(pools, images.engine, name, URL, MODEL, clients=clients, **lengths) as running:
        yield running


def kill_operators(release: Release) -> None:
    """All of them, as a node that fails would."""
    selector = "--selector=app.kubernetes.io/instance=kvik"
    release.system.run("delete", "pod", selector, "--grace-period=0", "--force", "--ignore-not-found")


def assert_reads_sensibly(autoscaler: Mapping[str, Any] | None) -> None:
    """Kubernetes' own words about what scales the pool: it can, it has a figure, and it is where it wants to be."""
    assert autoscaler is not None
    for kind in ("AbleToScale", "ScalingActive"):
        said = condition(autoscaler, kind)
        assert said is not None, autoscaler
        assert said["status"] == "True", said
    assert (autoscaler["status"]["currentReplicas"], autoscaler["status"]["desiredReplicas"]) == (1, 1)


def scales(kubectl: Kubectl) -> bool:
    return active(kubectl).get("status") == "True"


def active(kubectl: Kubectl) -> Mapping[str, str]:
    return condition(kubectl.get(POOL, NAME), "ScalingActive") or {}


def ready(kubectl: Kubectl) -> int | None:
    return ((kubectl.get(POOL, NAME) or {}).get("status") or {}).get("readyReplicas")


def asked_for(kubectl: Kubectl) -> int:
    replicas: int = (kubectl.get(POOL, NAME) or {})["spec"]["replicas"]
    return replicas


def history(kubectl: Kubectl) -> Sequence[Mapping[str, Any]]:
    """Of the last five changes of replicas, newest first."""
    status = (kubectl.get(POOL, NAME) or {}).get("status") or {}
    return (status.get("scaling") or {}).get("history") or ()


def steps(kubectl: Kubectl) -> list[tuple[int, int]]:
    """From how many to how many, oldest first."""
    return [(step["from"], step["to"]) for step in reversed(history(kubectl))]


def described(pools: Kubectl, system: Kubectl) -> str:
    """What a reader of a failed run wants to see."""
    operator = ("logs", "--selector=app.kubernetes.io/instance=kvik", "--tail=40", "--prefix")
    asked = ("describe " + POOL, "get pods --output=wide", f"describe {HPA}", "get events --sort-by=.lastTimestamp")
    return "\n".join([*(pools.run(*command.split()) for command in asked), system.run(*operator)])
