"""One pool's life on a real cluster, from `kubectl apply` to `helm uninstall`. Each test builds on those before it."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai
import pytest

from images import catalog
from scripts import demo
from tests.e2e.conftest import Images, Release
from tests.support.in_cluster_traffic import run_python, traffic
from tests.support.kubectl import Kubectl, KubectlError, condition, wait_for
from tests.support.looked_at import wait_for_a_look
from tests.support.operator_pods import SELECTOR, leader, wait_for_operators
from tests.support.upgrades import identity, write_next_charts

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "smollm2.yaml"
POOL = "inferencepools.kvik.dev"
NAME = "smollm2"
MODEL = "smollm2-135m-instruct"
URL = f"http://{NAME}.kvik-e2e.svc.cluster.local:8000/v1"
PODS = f"kvik.dev/pool={NAME}"

QUESTION = "What is the capital of France? Answer in one short sentence."
CHAT = f"""
import json, urllib.request
body = {{"model": {MODEL!r}, "messages": [{{"role": "user", "content": {QUESTION!r}}}],
         "max_tokens": 32, "temperature": 0}}
request = urllib.request.Request({URL!r} + "/chat/completions", json.dumps(body).encode(),
                                 {{"Content-Type": "application/json"}})
print(urllib.request.urlopen(request, timeout=60).read().decode())
"""


def describe(kubectl: Kubectl) -> str:
    """What a reader of a failed run wants to see."""
    return "\n".join(
        kubectl.run(*command.split())
        for command in (
            f"describe {POOL} {NAME}",
            "get pods --output=wide",
            "get events --sort-by=.lastTimestamp",
            f"logs --selector={PODS} --container=engine --tail=30 --prefix",
            "logs --namespace=kvik-system --selector=app.kubernetes.io/instance=kvik --tail=40 --prefix",
        )
    )


def is_true(kubectl: Kubectl, kind: str) -> bool:
    """Whether the condition is True for the spec as it is now."""
    pool = kubectl.get(POOL, NAME)
    found = condition(pool, kind)
    return (
        pool is not None
        and found is not None
        and found["status"] == "True"
        and found["observedGeneration"] == pool["metadata"]["generation"]
    )


def running_pods(kubectl: Kubectl) -> dict[str, Mapping[str, Any]]:
    return {
        pod["metadata"]["name"]: pod for pod in kubectl.list("pods", PODS) if "deletionTimestamp" not in pod["metadata"]
    }


@contextmanager
def light_traffic(kubectl: Kubectl, images: Images, name: str) -> Iterator[Any]:
    with traffic(kubectl, images.engine, name, URL, MODEL, clients=3, words=8, max_tokens=8) as running:
        yield running


def test_a_pool_is_ready_90_seconds_after_kubectl_apply(pools: Kubectl) -> None:
    pools.apply(EXAMPLE.read_text())

    wait_for("the pool to be Ready", lambda: is_true(pools, "Ready"), 90, lambda: describe(pools), patience=1)

    pool = pools.get(POOL, NAME)
    assert pool is not None
    assert pool["status"]["endpoint"] == f"http://{NAME}.kvik-e2e.svc:8000/v1"
    assert pool["status"]["observedGeneration"] == pool["metadata"]["generation"]
    wait_for("the engine's own words", lambda: model_of(pools) == MODEL, 30, lambda: describe(pools))


def model_of(kubectl: Kubectl) -> str | None:
    """The name of the model as the engine tells it."""
    return (kubectl.get(POOL, NAME) or {})["status"].get("model", {}).get("name")


def test_kubectl_get_shows_the_pool_on_one_line(pools: Kubectl) -> None:
    wait_for("1/1 in the table", lambda: "1/1" in pools.run("get", "kvp"), 30)

    head, line = pools.run("get", "kvp").splitlines()
    assert head.split() == ["NAME", "READY", "DESIRED", "CLASS", "MODEL", "AGE"]
    assert line.split()[:5] == [NAME, "1/1", "1", "Balanced", MODEL]


def test_the_plugin_asks_the_pod_itself_and_says_why_there_is_one(pools: Kubectl) -> None:
    head, pod = plugin(pools, "top").splitlines()
    assert head.split()[:3] == ["POD", "STATE", "KV"]
    assert pod.split()[:2] == [*running_pods(pools), "ready"]

    told = plugin(pools, "explain")
    assert "of a full pod / 75% -> 1, from 1 warm pod\n" in told
    assert "\nmore: above 75% twice in a row" in told
    assert re.search(r"^operator(, \S+ ago)?: [A-Z]\w+: ", told, re.MULTILINE), told  # no age before it has decided


def plugin(kubectl: Kubectl, command: str) -> str:
    """What `kubectl kvik COMMAND` prints about the pool."""
    target = (NAME, f"--kubeconfig={kubectl.kubeconfig}", f"--namespace={kubectl.namespace}")
    run = [sys.executable, "-m", "kvik_kubectl", command, *target]
    return subprocess.run(run, capture_output=True, text=True, timeout=60, check=True).stdout


def test_a_pod_chats_through_the_service_by_its_dns_name(pools: Kubectl, images: Images) -> None:
    answer = json.loads(run_python(pools, images.engine, "chat", CHAT))

    assert "Paris" in answer["choices"][0]["message"]["content"]
    assert answer["choices"][0]["finish_reason"] in {"stop", "length"}


def test_the_openai_client_streams_through_a_port_forward(pools: Kubectl) -> None:
    with (
        pools.port_forward(f"service/{NAME}", 8000) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
    ):
        stream = client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "Count to five."}],
            max_tokens=24,
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = list(stream)

    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    usage = chunks[-1].usage
    assert usage is not None
    assert 1 <= usage.completion_tokens <= 24


def test_a_wrong_pool_is_refused_with_the_name_of_the_field(pools: Kubectl) -> None:
    wrong = EXAMPLE.read_text().replace(f"name: {NAME}", "name: wrong", 1)

    with pytest.raises(KubectlError, match=r"spec\.model\.source"):
        pools.apply(wrong.replace("file:///models/", "ftp://models/"))


def test_a_roll_fails_none_of_the_requests_sent_during_it(pools: Kubectl, images: Images) -> None:
    before = set(running_pods(pools))
    with light_traffic(pools, images, "roll") as running:
        pools.run("patch", POOL, NAME, "--type=merge", '--patch={"spec":{"batching":{"chunkedPrefillTokens":64}}}')
        wait_for(
            "the roll to end",
            lambda: not before & set(running_pods(pools)) and is_true(pools, "RolloutComplete"),
            240,
            lambda: describe(pools),
        )
        wait_for("the old pods to be gone", lambda: len(pools.list("pods", PODS)) == 1, 90)

    assert running.result.failures == []
    assert running.result.succeeded >= 20


def test_an_upgrade_of_charts_api_and_operator_touches_no_pod_and_no_request(
    pools: Kubectl, images: Images, release: Release, tmp_path: Path
) -> None:
    """kserve PR #5085, kthena #1803, argo-rollouts #4696: a new operator rolled what nobody had changed."""
    charts, before = write_next_charts(tmp_path), identity(pools, NAME)
    helm = release.cluster.run_helm
    try:
        with light_traffic(pools, images, "upgrade") as running:
            helm("upgrade", "kvik-crds", str(charts / "kvik-crds"))
            values = ("--reset-then-reuse-values", "--set=image.engine.cpu.tag=0.9.0-demo")
            helm("upgrade", "kvik", str(charts / "kvik"), *values, "--wait", "--timeout=100s")
            wait_for_operators(release.system)
            wait_for("the new operator to look", lambda: newer_engine(pools) == "0.9.0", 60, lambda: describe(pools))
            wait_for_a_look(pools, NAME)
            after = identity(pools, NAME)
    finally:
        demo.install(release.cluster, catalog.product(release.cluster.image_prefix))
    assert after == before
    assert running.result.failures == []
    assert running.result.succeeded >= 10
    wait_for("the operator to be the old one", lambda: newer_engine(pools) is None, 60, lambda: describe(pools))
    assert identity(pools, NAME) == before


def test_a_killed_operator_touches_no_pod_and_no_request(pools: Kubectl, images: Images, release: Release) -> None:
    before, killed = identity(pools, NAME), wait_for_operators(release.system)
    with light_traffic(pools, images, "kill") as running:
        release.system.run("delete", "pod", *killed, "--grace-period=0", "--force")
        assert not set(wait_for_operators(release.system)) & set(killed)
        wait_for_a_look(pools, NAME)

    assert identity(pools, NAME) == before
    assert running.result.failures == []
    assert running.result.succeeded >= 10


def test_a_change_of_leader_touches_no_pod_and_no_request(pools: Kubectl, images: Images, release: Release) -> None:
    scale = ("scale", "deployment", f"--selector={SELECTOR}")
    before = identity(pools, NAME)
    try:
        with light_traffic(pools, images, "leader") as running:
            release.system.run(*scale, "--replicas=2")
            assert len(wait_for_operators(release.system)) == 2
            first = wait_for("a leader", lambda: leader(release.system), 60)
            release.system.run("delete", "pod", first, "--wait=false")
            wait_for("another leader", lambda: leader(release.system) not in (None, first), 60)
            wait_for_a_look(pools, NAME)
    finally:
        release.system.run(*scale, "--replicas=1")
        wait_for_operators(release.system)

    assert identity(pools, NAME) == before
    assert running.result.failures == []
    assert running.result.succeeded >= 5


def newer_engine(kubectl: Kubectl) -> str | None:
    """What the operator offers the pool."""
    return (kubectl.get(POOL, NAME) or {})["status"]["engine"].get("available")


def test_load_scales_up_and_idleness_down_without_a_failed_request(pools: Kubectl, images: Images) -> None:
    with light_traffic(pools, images, "light") as light:
        with traffic(pools, images.engine, "heavy", URL, MODEL, clients=48, words=60, max_tokens=96) as heavy:
            wait_for("a second pod", lambda: len(running_pods(pools)) == 2, 60, lambda: describe(pools))
            wait_for("both to be ready", lambda: ready_replicas(pools) == 2, 180, lambda: describe(pools))
        wait_for("one pod again", lambda: len(pools.list("pods", PODS)) == 1, 180, lambda: describe(pools))

    assert heavy.result.failures == []
    assert light.result.failures == []
    assert light.result.succeeded >= 20
    history = (pools.get(POOL, NAME) or {})["status"]["scaling"]["history"]
    assert {(1, 2), (2, 1)} <= {(step["from"], step["to"]) for step in history}
    events = [event["message"] for event in pools.list("events") if event["reason"] in {"ScaledUp", "ScaledDown"}]
    assert any(message.startswith("from 1 to 2 replicas on ") for message in events), events
    assert any(message.startswith("from 2 to 1 replica on ") for message in events), events


def ready_replicas(kubectl: Kubectl) -> int | None:
    return (kubectl.get(POOL, NAME) or {})["status"].get("readyReplicas")


REPLACE_CORE = """
import os, pathlib, signal, time, urllib.error, urllib.request

def core():
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if b"kvik_engine.core.main" in (folder / "cmdline").read_bytes().split(b"\\0"):
                return int(folder.name)
        except FileNotFoundError:
            pass

def wait_until_ready_answers(status):
    deadline = time.monotonic() + 120
    answer = None
    while answer != status:
        assert time.monotonic() < deadline, f"/ready still answers {answer}"
        try:
            answer = urllib.request.urlopen("http://127.0.0.1:8001/ready", timeout=5).status
        except urllib.error.HTTPError as error:
            answer = error.code
        except OSError:
            answer = None  # a busy node was late; the deadline decides
        time.sleep(0.05)

killed = core()
os.kill(killed, signal.SIGKILL)
wait_until_ready_answers(503)
wait_until_ready_answers(200)
assert core() not in (None, killed)
print("replaced")
"""


def test_a_killed_core_comes_back_without_a_container_restart(pools: Kubectl, images: Images) -> None:
    (pod,) = running_pods(pools)
    command = ["exec", pod, "--container=engine", "--", "python3", "-c", REPLACE_CORE]
    assert pools.run(*command, timeout=300).strip() == "replaced", describe(pools)

    wait_for("the pod to be ready", lambda: has_become_ready(running_pods(pools).get(pod)), 30, lambda: describe(pools))
    (status,) = running_pods(pools)[pod]["status"]["containerStatuses"]
    assert status["restartCount"] == 0
    assert "Paris" in run_python(pools, images.engine, "chat-again", CHAT)


def has_become_ready(pod: Mapping[str, Any] | None) -> bool:
    found = condition(pod, "Ready")
    return found is not None and found["status"] == "True"


def test_deleting_the_pool_leaves_none_of_its_children(pools: Kubectl) -> None:
    kinds = "deployments,replicasets,pods,services,serviceaccounts,poddisruptionbudgets,networkpolicies,endpointslices"
    assert pools.list(kinds, PODS)

    pools.run("delete", POOL, NAME)

    wait_for("the children to be gone", lambda: not pools.list(kinds, PODS), 60, lambda: pools.run("get", kinds))


def test_helm_uninstall_leaves_nothing_but_the_crd(pools: Kubectl, release: Release) -> None:
    release.uninstall()

    system = release.system
    kinds = "deployments,pods,services,serviceaccounts,roles,rolebindings,networkpolicies,leases,secrets,configmaps"
    wait_for("all of it to be gone", lambda: not system.list(kinds, SELECTOR), 60, lambda: system.run("get", kinds))
    assert system.list("clusterroles,clusterrolebindings", SELECTOR) == []
    assert [lease["metadata"]["name"] for lease in system.list("leases")] == []
    assert system.get("crd", POOL) is not None
