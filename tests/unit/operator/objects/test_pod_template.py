"""The pod template: what may not change it, and that it stays within `restricted`. Whole: test_released_versions."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from kvik_operator.crd.effective import effective
from kvik_operator.crd.inferencepool import InferencePool, PoolSpec
from kvik_operator.errors import PoolError
from kvik_operator.names import LABEL_POOL, LABEL_TEMPLATE_HASH, PoolKey
from kvik_operator.objects.engine_image import EngineImage
from kvik_operator.objects.pod_template import mounted, pod_template
from tests.support.pools import KEY, SOURCE, make_pool, spec_of

ROOT = Path(__file__).resolve().parents[4]
IMAGE = EngineImage("kvik/engine:0.1.0", "IfNotPresent")
EXAMPLES = {
    path.stem: document
    for path in (ROOT / "examples").glob("*.yaml")
    if (document := yaml.safe_load(path.read_text())).get("kind") == "InferencePool"
}


def render(spec: PoolSpec, key: PoolKey = KEY, image: EngineImage = IMAGE) -> dict[str, Any]:
    return pod_template(key, spec, effective(spec, key.name), image)


def container(template: Mapping[str, Any], name: str = "engine") -> dict[str, Any]:
    every = [*template["spec"].get("initContainers", []), *template["spec"]["containers"]]
    return next(item for item in every if item["name"] == name)


@given(
    replicas=st.integers(0, 1000),
    low=st.integers(1, 10),
    more=st.integers(0, 10),
    target=st.integers(10, 95),
    window=st.sampled_from(["20s", "5m"]),
)
def test_replicas_scaling_and_rollout_never_change_the_template(
    replicas: int, low: int, more: int, target: int, window: str
) -> None:
    scaling = {
        "minReplicas": low,
        "maxReplicas": low + more,
        "targetLoadPercent": target,
        "scaleDownStabilization": window,
    }
    assert render(spec_of(replicas=replicas, scaling=scaling, rollout={"strategy": "InPlace"})) == render(spec_of())


CHANGES: dict[str, dict[str, Any]] = {
    "source": {"model": {"source": "file:///models/other.gguf"}},
    "served_name": {"model": {"source": SOURCE, "name": "other"}},
    "digest": {"model": {"source": SOURCE, "digest": "sha256:" + "0" * 64}},
    "dtype": {"model": {"source": SOURCE, "dtype": "FP32"}},
    "context": {"model": {"source": SOURCE, "maxContextTokens": 512}},
    "class": {"slo": {"class": "Batch"}},
    "chunk": {"batching": {"chunkedPrefillTokens": 64}},
    "requests": {"batching": {"maxRequests": 3}},
    "queue": {"batching": {"maxQueuedRequests": 3}},
    "admission": {"batching": {"admission": "Goodput"}},
    "preemption": {"batching": {"preemption": {"mode": "Recompute"}}},
    "swap_threshold": {"batching": {"preemption": {"swapThresholdTokens": 500}}, "kvCache": {"swapSpace": "1Gi"}},
    "kv_size": {"kvCache": {"size": "1Gi"}},
    "swap_space": {"kvCache": {"swapSpace": "1Gi"}},
    "disk_cache": {"kvCache": {"swapSpace": "1Gi", "diskCache": {"size": "9Gi"}}},
    "api_keys": {"apiKeys": {"secretRef": {"name": "clients"}}},
    "memory_percent": {"kvCache": {"memoryPercent": 50}},
    "block": {"kvCache": {"blockTokens": 32}},
    "keys_quantised": {"kvCache": {"keyDtype": "INT8"}},
    "values_quantised": {"kvCache": {"valueDtype": "FP8"}},
    "prefix_cache": {"kvCache": {"prefixCache": "Disabled"}},
    "device": {"resources": {"device": "CPU"}},
    "memory": {"resources": {"requests": {"memory": "1Gi"}}},
    "accelerator": {"resources": {"accelerators": {"resourceName": "amd.com/gpu"}}},
    "startup": {"startup": {"timeout": "60s"}},
    "drain": {"drain": {"timeout": "60s"}},
    "labels": {"template": {"labels": {"a": "b"}}},
    "env": {"template": {"env": [{"name": "A", "value": "b"}]}},
    "node": {"template": {"nodeSelector": {"a": "b"}}},
}

NEEDED: dict[str, dict[str, Any]] = {
    what: {"kvCache": {"swapSpace": "1Gi"}} for what in ("swap_threshold", "disk_cache")
}
"""What a pool must have before such a change."""


@pytest.mark.parametrize("what", CHANGES)
def test_every_other_field_rolls_the_pods(what: str) -> None:
    specs = spec_of(**NEEDED.get(what, {})), spec_of(**CHANGES[what])
    before, after = (render(spec)["metadata"]["labels"] for spec in specs)
    assert before[LABEL_TEMPLATE_HASH] != after[LABEL_TEMPLATE_HASH]


def test_a_new_image_rolls_the_pods() -> None:
    newer = render(spec_of(), image=EngineImage("kvik/engine:0.2.0", "IfNotPresent"))
    assert newer["metadata"]["labels"] != render(spec_of())["metadata"]["labels"]


HUB_SPEC = {
    "model": {"source": "hf://org/name@abc#m.gguf", "secretRef": {"name": "hub"}, "digest": "sha256:" + "a" * 64}
}


def test_only_the_fetching_container_sees_the_token_and_the_hub() -> None:
    template = render(spec_of(**HUB_SPEC), image=EngineImage("i:1", "Always", "http://hub.local"))
    engine, fetch = container(template), container(template, "model")
    assert [mount["name"] for mount in fetch["volumeMounts"]][-2:] == ["models", "model-token"]
    assert "model-token" not in [mount["name"] for mount in engine["volumeMounts"]]
    assert {"name": "HF_ENDPOINT", "value": "http://hub.local"} in fetch["env"]
    assert "HF_ENDPOINT" not in [variable["name"] for variable in engine["env"]]
    assert fetch["args"] == [
        "model",
        "pull",
        "hf://org/name@abc#m.gguf",
        "--to=/models/pool",
        f"--digest=sha256:{'a' * 64}",
        "--token-file=/var/run/secrets/kvik/model/token",
    ]
    assert engine["args"][:2] == ["serve", "/models/pool"]
    assert engine["volumeMounts"][-1] == {"name": "models", "mountPath": "/models", "readOnly": True}


def test_the_fetching_container_keeps_to_the_pools_limits_too() -> None:
    """A namespace whose quota counts limits.cpu refuses a pod of which one container has none."""
    spec = spec_of(model={"source": "hf://o/n@r"}, resources={"limits": {"cpu": "8", "ephemeral-storage": "9Gi"}})
    resources = container(render(spec), "model")["resources"]
    assert resources["limits"] == {"cpu": "8", "ephemeral-storage": "9Gi", "memory": "24Gi"}
    assert "nvidia.com/gpu" not in resources["requests"]


def test_a_claim_is_mounted_read_only_and_nothing_is_fetched() -> None:
    template = render(spec_of(model={"source": "pvc://weights/llama/8b"}))
    assert "initContainers" not in template["spec"]
    assert container(template)["args"][:2] == ["serve", "/models/claim/llama/8b"]
    assert {"name": "models", "persistentVolumeClaim": {"claimName": "weights", "readOnly": True}} in (
        template["spec"]["volumes"]
    )


def test_a_model_in_the_image_is_not_hidden_by_a_volume() -> None:
    template = render(spec_of(model={"source": SOURCE}))
    assert container(template)["args"][:2] == ["serve", "/models/smollm2/model.gguf"]
    assert not [mount for mount in container(template)["volumeMounts"] if mount["mountPath"].startswith("/models")]


def test_an_unknown_scheme_is_the_pools_mistake() -> None:
    with pytest.raises(PoolError, match=r"^spec\.model\.source"):
        render(spec_of(model={"source": "s3://bucket/key"}))


def test_flags_are_set_only_for_explicit_and_class_values() -> None:
    args = container(render(spec_of(resources={"device": "CPU"})))["args"]
    assert sorted(arg.split("=")[0] for arg in args[2:]) == [
        "--chunked-prefill-tokens",
        "--device",
        "--drain-timeout",
        "--max-batch-tokens",
        "--max-queued-requests",
        "--max-requests",
        "--model-name",
        "--slo-class",
        "--slo-ttft",
        "--startup-timeout",
    ]


def test_every_explicit_engine_setting_becomes_a_flag() -> None:
    spec = spec_of(
        model={"source": SOURCE, "name": "m", "dtype": "BF16", "maxContextTokens": 1024},
        slo={"class": "Interactive"},
        kvCache={
            "memoryPercent": 85,
            "blockTokens": 8,
            "keyDtype": "FP8",
            "valueDtype": "Auto",
            "prefixCache": "BlockHash",
        },
        drain={"timeout": "1500ms"},
    )
    args = container(render(spec))["args"]
    assert {
        "--model-name=m",
        "--dtype=bf16",
        "--max-context-tokens=1024",
        "--slo-class=interactive",
        "--memory-fraction=0.85",
        "--block-tokens=8",
        "--kv-key-dtype=fp8",
        "--kv-value-dtype=auto",
        "--prefix-cache=block-hash",
        "--drain-timeout=1500ms",
        "--device=gpu",
    } <= set(args)


def test_a_dollar_in_a_users_text_stays_a_dollar() -> None:
    """The kubelet expands $(NAME) in arguments and variables, which would leak one into the other."""
    spec = spec_of(model={"source": "pvc://claim/$(HOME)"}, template={"env": [{"name": "A", "value": "$(B) $C"}]})
    engine = container(render(spec))
    assert engine["args"][1] == "/models/claim/$$(HOME)"
    assert engine["env"][-1] == {"name": "A", "value": "$$(B) $C"}


@pytest.mark.parametrize(("timeout", "want"), [("30s", 45), ("1500ms", 17), ("1h", 3615)])
def test_the_grace_covers_acceptance_drain_and_exit(timeout: str, want: int) -> None:
    """GIE #549, llm-d #927: a pod was killed before its engine had ended what it had accepted."""
    assert render(spec_of(drain={"timeout": timeout}))["spec"]["terminationGracePeriodSeconds"] == want


def test_probes_ask_the_metrics_port_and_allow_the_start_up_time() -> None:
    """kserve #5062: no startup probe. llm-d-benchmark #1734: probes of one second took all pods out under load."""
    engine = container(render(spec_of(startup={"timeout": "2m"})))
    startup, readiness, liveness = (engine[name] for name in ("startupProbe", "readinessProbe", "livenessProbe"))
    assert (startup["failureThreshold"], startup["periodSeconds"]) == (60, 2)
    assert [probe["httpGet"]["path"] for probe in (startup, readiness, liveness)] == ["/ready", "/ready", "/live"]
    assert {probe["httpGet"]["port"] for probe in (startup, readiness, liveness)} == {8001}
    assert {probe["timeoutSeconds"] for probe in (startup, readiness, liveness)} == {3}
    assert (readiness["periodSeconds"], readiness["failureThreshold"]) == (2, 3)
    assert (liveness["periodSeconds"], liveness["failureThreshold"]) == (10, 3)
    assert "preStop" not in str(engine)


def test_a_gpu_pod_asks_for_one_accelerator_and_a_cpu_pod_for_none() -> None:
    gpu, cpu = (container(render(spec_of(resources={"device": device})))["resources"] for device in ("GPU", "CPU"))
    assert gpu["limits"]["nvidia.com/gpu"] == gpu["requests"]["nvidia.com/gpu"] == "1"
    assert "nvidia.com/gpu" not in {**cpu["limits"], **cpu["requests"]}
    assert "cpu" not in cpu["limits"]


KEYED: dict[str, Any] = {"apiKeys": {"secretRef": {"name": "clients", "key": "chat.keys"}}}


@pytest.mark.parametrize("source", [SOURCE, "hf://org/name@abc", "pvc://claim/path"])
def test_the_engine_alone_gets_the_file_of_keys_which_the_kubelet_keeps_up_to_date(source: str) -> None:
    """A subPath or a variable would stay as it was at the start."""
    template = render(spec_of(model={"source": source}, **KEYED))
    engine = container(template)
    assert "--api-keys-file=/var/run/secrets/kvik/api/keys" in engine["args"]
    mount = {"name": "api-keys", "mountPath": "/var/run/secrets/kvik/api", "readOnly": True}
    assert mount in engine["volumeMounts"]
    volume = {"secretName": "clients", "items": [{"key": "chat.keys", "path": "keys"}]}
    assert {"name": "api-keys", "secret": volume} in template["spec"]["volumes"]
    others = template["spec"].get("initContainers", [])
    assert [one for other in others for one in other["volumeMounts"] if one["name"] == "api-keys"] == []
    assert "clients" not in str([engine["args"], engine["env"], template["metadata"]])


def test_the_disk_cache_is_a_writable_volume_of_what_was_asked_of_the_node() -> None:
    template = render(spec_of(kvCache={"swapSpace": "1Gi", "diskCache": {"size": "10Gi"}}))
    engine = container(template)
    assert {"--disk-cache=/var/cache/kvik-kv", f"--disk-cache-size={10 * 2**30}"} <= set(engine["args"])
    assert {"name": "disk-cache", "mountPath": "/var/cache/kvik-kv"} in engine["volumeMounts"]
    size = engine["resources"]["requests"]["ephemeral-storage"]
    assert {"name": "disk-cache", "emptyDir": {"sizeLimit": size}} in template["spec"]["volumes"]


def test_what_a_pod_cannot_start_without_is_told() -> None:
    assert mounted(render(spec_of())) == []
    claim = render(spec_of(model={"source": "pvc://models/a/b"}, **KEYED))
    assert mounted(claim) == ["PersistentVolumeClaim models", "Secret clients with the key chat.keys"]
    hub = render(spec_of(**HUB_SPEC, kvCache={"swapSpace": "1Gi", "diskCache": {"size": "10Gi"}}))
    assert mounted(hub) == ["Secret hub with the key token"]
    somebodys = [{"name": "a", "secret": {"secretName": "b"}}, {"name": "c", "configMap": {"name": "d"}}, {"name": "e"}]
    assert mounted({"spec": {"volumes": somebodys}}) == mounted({"spec": {}}) == []


EVERY_VOLUME = {**HUB_SPEC, **KEYED, "kvCache": {"swapSpace": "1Gi", "diskCache": {"size": "10Gi"}}}


@pytest.mark.parametrize("spec", [{}, EVERY_VOLUME, {"model": {"source": "pvc://c/p"}}], ids=["file", "hf", "pvc"])
def test_the_pod_satisfies_the_restricted_standard(spec: dict[str, Any]) -> None:
    pod = render(spec_of(**spec))["spec"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["enableServiceLinks"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
    for item in [*pod["containers"], *pod.get("initContainers", [])]:
        context = item["securityContext"]
        assert context["allowPrivilegeEscalation"] is False
        assert context["readOnlyRootFilesystem"] is True
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert not any("hostPort" in port for port in item.get("ports", []))
    kinds = {kind for volume in pod["volumes"] for kind in volume if kind != "name"}
    assert kinds <= {"emptyDir", "secret", "persistentVolumeClaim"}


def test_the_users_parts_of_the_template_reach_the_pod() -> None:
    template = {
        "labels": {"team": "search"},
        "annotations": {"example.com/a": "b"},
        "nodeSelector": {"disk": "fast"},
        "affinity": {"nodeAffinity": {}},
        "priorityClassName": "serving",
        "runtimeClassName": "nvidia",
        "tolerations": [{"operator": "Exists"}],
        "topologySpreadConstraints": [{"maxSkew": 2, "topologyKey": "rack", "whenUnsatisfiable": "DoNotSchedule"}],
        "imagePullSecrets": [{"name": "registry"}],
    }
    rendered = render(spec_of(template=template))
    assert rendered["metadata"]["labels"]["team"] == "search"
    assert rendered["metadata"]["annotations"]["example.com/a"] == "b"
    for name in ("nodeSelector", "affinity", "priorityClassName", "runtimeClassName", "tolerations"):
        assert rendered["spec"][name] == template[name]
    assert rendered["spec"]["topologySpreadConstraints"] == template["topologySpreadConstraints"]
    assert rendered["spec"]["imagePullSecrets"] == [{"name": "registry"}]


LOST = ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"]


@pytest.mark.parametrize(
    ("chosen", "want"),
    [
        ([], LOST),
        ([{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}], LOST),
        ([{"key": LOST[1], "operator": "Exists", "effect": "NoSchedule"}], LOST),
        ([{"key": LOST[1], "operator": "Exists", "tolerationSeconds": 600}], LOST[:1]),
        ([{"operator": "Exists", "effect": "NoExecute"}], []),
    ],
)
def test_a_pod_leaves_a_lost_node_soon_unless_the_user_says_otherwise(
    chosen: list[dict[str, Any]], want: list[str]
) -> None:
    """k/k #20673, #55713: for five minutes, a pod that nobody can reach is none that is missing."""
    rendered = render(spec_of(template={"tolerations": chosen}))["spec"]["tolerations"]
    assert rendered[: len(chosen)] == chosen
    ours = [{"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 30} for key in want]
    assert rendered[len(chosen) :] == ours


def test_an_absent_template_spreads_softly_and_an_empty_list_not_at_all() -> None:
    soft = render(spec_of())["spec"]["topologySpreadConstraints"]
    assert {constraint["whenUnsatisfiable"] for constraint in soft} == {"ScheduleAnyway"}
    assert render(spec_of(template={"topologySpreadConstraints": []}))["spec"]["topologySpreadConstraints"] == []


def test_a_users_label_never_replaces_ours() -> None:
    """The schema refuses it; an object stored before that rule must not change the selector's label either."""
    rendered = render(spec_of(template={"labels": {LABEL_POOL: "other"}}))
    assert rendered["metadata"]["labels"][LABEL_POOL] == KEY.name


def test_no_child_carries_an_annotation_of_kopf() -> None:
    """mysql-operator #51: kopf's annotations on pods grew past the runtime's label limit, and pods stopped starting."""
    assert "kopf" not in str(render(InferencePool.from_object(make_pool()).spec))
