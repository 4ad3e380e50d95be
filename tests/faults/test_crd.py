"""The InferencePool schema, tried on a real API server: what it takes, what it refuses and with which words."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes import client, config
from kubernetes.client.exceptions import ApiException

from kvik_operator.names import ChildKind, PoolKey, Reason
from kvik_operator.objects.engine_image import EngineImage
from kvik_operator.reconcile.observe import observe
from kvik_operator.reconcile.revisions import plan_revisions
from kvik_operator.reconcile.status import InUse, Reports, status_update
from kvik_operator.reconcile.types import Applied, EngineInfo, ScaleStep, ScalingReport
from tests.support.control_plane import RunningControlPlane, control_plane
from tests.support.fake_cluster import FakeCluster
from tests.support.field_edits import EDITS
from tests.support.kubectl import wait_for
from tests.support.pools import NOW, at, make_deployment, make_pod
from tests.support.refused_pools import REFUSED, SOURCE
from tests.support.whole_spec import WHOLE_SPEC

pytestmark = pytest.mark.timeout(600)

ROOT = Path(__file__).resolve().parents[2]
CRD = ROOT / "crds" / "inferencepools.kvik.dev.yaml"
NAMESPACE = "default"
SCHEMA = yaml.safe_load(CRD.read_text())["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
STATUS = SCHEMA["properties"]["status"]["properties"]


class Pools:
    """The pools of one namespace, strictly validated as kubectl does it."""

    def __init__(self, api: client.CustomObjectsApi) -> None:
        self._api = api
        self._where = {"group": "kvik.dev", "version": "v1alpha1", "namespace": NAMESPACE, "plural": "inferencepools"}

    def create(self, pool: Mapping[str, Any], *, dry_run: bool = True, validation: str = "Strict") -> dict[str, Any]:
        kept = {"dry_run": "All"} if dry_run else {}
        created: dict[str, Any] = self._api.create_namespaced_custom_object(
            **self._where, body=pool, field_validation=validation, **kept
        )
        return created

    def refusal(self, pool: Mapping[str, Any]) -> str:
        """The message with which the API server refuses this pool."""
        with pytest.raises(ApiException) as refused:
            self.create(pool)
        message: str = json.loads(refused.value.body)["message"]
        return message


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningControlPlane]:
    with control_plane(tmp_path_factory.mktemp("plane")) as running:
        running.run_kubectl("apply", "--server-side", "-f", str(CRD))
        pools_page = "/apis/kvik.dev/v1alpha1/inferencepools"
        wait_for("the CRD to be served", lambda: running.run_kubectl("get", "--raw", pools_page, check=False) != "", 30)
        yield running


@pytest.fixture(scope="module")
def pools(plane: RunningControlPlane) -> Iterator[Pools]:
    with config.new_client_from_config(str(plane.kubeconfig)) as connection:
        yield Pools(client.CustomObjectsApi(connection))
        connection.rest_client.pool_manager.clear()  # the client leaves its connections to the collector


def pool(spec: Mapping[str, Any] | None = None, name: str = "chat") -> dict[str, Any]:
    """A smallest pool with `spec` over it."""
    return {
        "apiVersion": "kvik.dev/v1alpha1",
        "kind": "InferencePool",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"model": {"source": SOURCE}, **(spec or {})},
    }


def test_every_field_at_once_is_accepted(pools: Pools) -> None:
    created = pools.create(pool(WHOLE_SPEC))
    for name, value in WHOLE_SPEC.items():
        assert created["spec"][name] == value


def test_the_smallest_pool_gets_only_defaults_that_no_other_field_decides(pools: Pools) -> None:
    created = pools.create(pool())
    assert created["spec"] == {
        "model": {"source": SOURCE},
        "slo": {"class": "Balanced"},
        "resources": {"device": "GPU"},
        "replicas": 1,
        "rollout": {"strategy": "Auto"},
    }


ACCEPTED_SOURCES = [
    "hf://HuggingFaceTB/SmolLM2-135M-Instruct@main",
    "hf://org/na.me_x@refs/pr/1",
    "pvc://models/llama",
    "pvc://my.claim/dir/model.gguf",
    SOURCE,
]


@pytest.mark.parametrize("source", ACCEPTED_SOURCES)
def test_a_good_source_is_accepted(pools: Pools, source: str) -> None:
    assert pools.create(pool({"model": {"source": source}}))["spec"]["model"]["source"] == source


PAIRS: list[dict[str, Any]] = [
    {"kvCache": {"swapSpace": "1Gi"}},
    {"batching": {"preemption": {"mode": "Recompute"}}},
    {"batching": {"preemption": {"mode": "Auto"}}},
    {"batching": {"preemption": {"mode": "Swap"}}, "kvCache": {"swapSpace": 1073741824, "prefixCache": "Disabled"}},
    {"batching": {"preemption": {"mode": "Recompute"}}, "kvCache": {"swapSpace": "1Gi"}},
    {"batching": {"preemption": {"swapThresholdTokens": 500}}, "kvCache": {"swapSpace": "1Gi"}},
    {"batching": {"preemption": {"mode": "Recompute"}}, "kvCache": {"swapSpace": "1Gi", "diskCache": {"size": 1}}},
    {"batching": {"admission": "Goodput"}},
    {"batching": {"admission": "Goodput"}, "slo": {"class": "Batch", "ttft": "30s"}},
    {"batching": {"admission": "Queue"}, "slo": {"class": "Batch"}},
]


@pytest.mark.parametrize("spec", PAIRS, ids=json.dumps)
def test_pairs_that_have_an_effect_are_accepted(pools: Pools, spec: dict[str, Any]) -> None:
    assert pools.create(pool(spec))["spec"].items() >= spec.items()


@pytest.mark.parametrize("field", EDITS)
def test_an_edit_of_every_field_is_accepted(pools: Pools, field: str) -> None:
    """What comes of it: tests/unit/operator/reconcile/test_every_field.py."""
    edit = EDITS[field]
    created = pools.create(pool({**edit.of, **edit.to}))
    assert all(
        created["spec"][group].items() >= fields.items() for group, fields in edit.to.items() if group != "replicas"
    )


def written_pools() -> Iterator[Any]:
    """Every pool in the examples and in the pages."""
    for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/*.yaml")]:
        text = path.read_text()
        parts = re.findall(r"^```yaml\n(.*?)^```", text, re.MULTILINE | re.DOTALL) if path.suffix == ".md" else [text]
        for document in (document for part in parts for document in yaml.safe_load_all(part)):
            if isinstance(document, dict) and document.get("kind") == "InferencePool":
                yield pytest.param(document, id=f"{path.name}:{document['metadata']['name']}")


@pytest.mark.parametrize("written", list(written_pools()))
def test_every_pool_of_the_pages_is_accepted(pools: Pools, written: dict[str, Any]) -> None:
    written["metadata"]["namespace"] = NAMESPACE
    assert pools.create(written)["spec"]["model"] == written["spec"]["model"]


@pytest.mark.parametrize("what", REFUSED)
def test_a_bad_pool_is_refused_with_a_message_that_names_the_field(pools: Pools, what: str) -> None:
    spec, field, words = REFUSED[what]
    message = pools.refusal(pool(spec))
    assert field in message
    assert words in message
    # The API server knows the types of what our own rules refuse, and would show those in place of the values.
    assert not re.search(r'Invalid value: "(string|object|array)": (?!spec\.)', message)


@pytest.mark.parametrize("name", ["a" * 46, "0chat", "a.b"])
def test_a_name_that_children_cannot_carry_is_refused(pools: Pools, name: str) -> None:
    assert "metadata.name" in pools.refusal(pool(name=name))


def test_the_longest_name_is_accepted(pools: Pools) -> None:
    assert pools.create(pool(name="a" * 45))


HOSTILE: dict[str, dict[str, Any]] = {
    "host_path": {"volumes": [{"name": "root", "hostPath": {"path": "/"}}]},
    "privileged": {"securityContext": {"privileged": True}},
    "host_network": {"hostNetwork": True},
    "host_pid": {"hostPID": True},
    "service_account": {"serviceAccountName": "admin"},
    "containers": {"containers": [{"name": "x", "image": "evil"}]},
    "sidecar": {"initContainers": [{"name": "x", "image": "evil"}]},
    "token": {"automountServiceAccountToken": True},
    "node": {"nodeName": "control-plane"},
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_template_cannot_be_expressed(pools: Pools, what: str) -> None:
    hostile = pool({"template": HOSTILE[what]})
    assert "unknown field" in pools.refusal(hostile)
    assert pools.create(hostile, validation="Ignore")["spec"]["template"] == {}


def test_scale_reads_and_writes_replicas_and_apply_keeps_them(plane: RunningControlPlane, pools: Pools) -> None:
    manifest = json.dumps(pool(name="scaled"))
    plane.run_kubectl("apply", "-f", "-", stdin=manifest)
    plane.run_kubectl("scale", "inferencepools.kvik.dev/scaled", "--replicas=3", "-n", NAMESPACE)
    plane.run_kubectl("apply", "-f", "-", stdin=manifest)
    read = plane.run_kubectl(
        "get", "inferencepools.kvik.dev/scaled", "-n", NAMESPACE, "-o", "jsonpath={.spec.replicas}"
    )
    assert read == "3"


def whole_status(stored: dict[str, Any]) -> Mapping[str, Any]:
    """A status of the operator's own making, with every field that it can write."""
    stored["metadata"]["namespace"] = NAMESPACE
    cluster = FakeCluster(stored)
    cluster.engine_pods = [make_pod(ready=True, model={"state": {"terminated": FETCHED}})]
    observed = observe(PoolKey(NAMESPACE, stored["metadata"]["name"]), stored, cluster, NOW)
    infos = {
        "uid-chat-1": EngineInfo(
            version="0.1.0",
            model_name="chat",
            revision="c0ffee",
            digest="sha256:1",
            parameters=8_000_000_000,
            context=8192,
            dtype="bf16",
            kv_bytes_per_token=131072,
            kv_max_tokens=1_000_000,
            startup=dict.fromkeys(("model_fetched", "weights_loaded", "compiled", "warm"), NOW),
        )
    }
    step = ScaleStep(NOW, 1, 2, "up", "kv", 180, "60 % of full x 3 pods / 75 % -> 3")
    scaling = ScalingReport(True, Reason.SCALING_ON_LOAD, "60 %", 2, NOW, (step,))
    applied = Applied({ChildKind.DEPLOYMENT: make_deployment()})
    revision = plan_revisions((), None, observed, EngineImage("kvik/engine:0.1.0", "IfNotPresent")).use
    return status_update(observed, 1, applied, Reports(infos, scaling), InUse(revision, "kvik/engine:0.3.0")).patch


FETCHED = {"exitCode": 0, "startedAt": at(-8), "finishedAt": at(-6)}


def test_a_status_of_our_own_making_is_stored_whole(plane: RunningControlPlane, pools: Pools) -> None:
    """What the operator writes is in the schema: nothing of it is pruned, and kubectl shows it."""
    status = whole_status(pools.create(pool(WHOLE_SPEC, name="told"), dry_run=False))
    assert set(status) == set(STATUS), "the operator writes every field of the schema, and no other"
    for name in ("revision", "engine"):
        assert set(status[name]) == set(STATUS[name]["properties"])
    plane.run_kubectl(
        "patch", "inferencepools.kvik.dev/told", "-n", NAMESPACE, "--subresource=status", "--type=merge",
        "-p", json.dumps({"status": status}),
    )  # fmt: skip
    stored = json.loads(plane.run_kubectl("get", "inferencepools.kvik.dev/told", "-n", NAMESPACE, "-o", "json"))
    assert stored["status"] == status
    shown = plane.run_kubectl("get", "kvp", "told", "-n", NAMESPACE, "-o", "wide").split("\n")
    assert shown[0].split() == ["NAME", "READY", "DESIRED", "CLASS", "MODEL", "MAX-TOKENS", "TTFT-TARGET", "AGE"]
    assert shown[1].split()[:7] == ["told", "1/1", "1", "Interactive", "org/chat:latest", "1000000", "1500ms"]


def test_kubectl_explains_every_field(plane: RunningControlPlane) -> None:
    listed = explained(plane.run_kubectl("explain", "inferencepools.kvik.dev", "--recursive"))
    assert [path for path in _paths(SCHEMA) if path not in listed] == []
    for group in ("", ".spec", ".spec.batching.preemption", ".spec.template.tolerations", ".status.effective.kvCache"):
        text = plane.run_kubectl("explain", f"inferencepools.kvik.dev{group}")
        assert "<no description>" not in text
        assert "<empty>" not in text


def explained(text: str) -> set[str]:
    """The paths that `kubectl explain --recursive` lists, by their indentation."""
    paths: set[str] = set()
    above: list[str] = []
    for line in text.partition("FIELDS:\n")[2].splitlines():
        name = line.split("\t")[0].strip()
        depth = (len(line) - len(line.lstrip())) // 2
        above[depth - 1 :] = [name]
        paths.add("".join(f".{one}" for one in above))
    return paths


def test_every_description_says_more_than_the_fields_name() -> None:
    assert [path for path, field in _paths(SCHEMA).items() if _says_nothing(path, field)] == []


def _says_nothing(path: str, field: Mapping[str, Any]) -> bool:
    name = path.rpartition(".")[2]
    own = {name.lower(), *re.findall(r"[a-z]+", re.sub(r"([A-Z])", r" \1", name).lower())}
    said = set(re.findall(r"[a-z]+", field.get("description", "").lower()))
    return not said - own - {"a", "an", "the", "of", "in", "use"}


def _paths(schema: Mapping[str, Any], under: str = "") -> dict[str, Mapping[str, Any]]:
    """Every field of a schema by its path; a list's items count as the list."""
    found: dict[str, Mapping[str, Any]] = {}
    for name, one in (schema.get("items", schema).get("properties") or {}).items():
        if (path := f"{under}.{name}") != ".metadata":
            found |= {path: one, **_paths(one, path)}
    return found
