"""Pools as each version of the operator has stored them: later operators apply their pods unchanged.

tests/data/released/VERSION/POOL.yaml holds a pool's spec and the ControllerRevision that VERSION made of it. The folder
of the version in the VERSION file is what this tree renders; UPDATE_GOLDEN=1 writes it anew, while the CHANGELOG calls
that version not released.
"""

import json
import os
import re
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvik_operator.crd.engine_version import Version
from kvik_operator.names import ChildKind, PoolKey
from kvik_operator.objects.engine_image import EngineImage, version_of
from kvik_operator.reconcile.desired import desired
from kvik_operator.reconcile.observe import observe
from kvik_operator.reconcile.revisions import plan_revisions, with_values_of
from kvik_operator.reconcile.types import EngineImages, Observed, ReconcileOptions, RevisionPlan
from tests.support.fake_cluster import FakeCluster
from tests.support.pools import NOW, UID, make_pool

ROOT = Path(__file__).resolve().parents[4]
RELEASED = ROOT / "tests" / "data" / "released"
VERSION = (ROOT / "VERSION").read_text().strip()
SCHEMA = yaml.safe_load((ROOT / "crds" / "inferencepools.kvik.dev.yaml").read_text())["spec"]["versions"][0]["schema"]
NEWER = EngineImage("mirror.test/engine:99.0.0-cpu", "Always", "https://hub.test")
"""An operator of later: another registry, version, pull policy and hub."""

EVERY_GROUP: dict[str, Any] = {
    "model": {
        "source": "hf://org/name@3f2a9c1#model-q4_1.gguf",
        "name": "org/chat:latest",
        "digest": "sha256:" + "0" * 64,
        "secretRef": {"name": "hf-token"},
        "dtype": "BF16",
        "quantization": "None",
        "maxContextTokens": 8192,
    },
    "engine": {"version": VERSION},
    "slo": {"class": "Interactive", "ttft": "1s500ms"},
    "batching": {
        "maxRequests": 8,
        "maxBatchTokens": 512,
        "chunkedPrefillTokens": 256,
        "maxQueuedRequests": 0,
        "admission": "Goodput",
        "preemption": {"mode": "Auto", "swapThresholdTokens": 500},
    },
    "kvCache": {
        "memoryPercent": 85,
        "blockTokens": 32,
        "keyDtype": "INT8",
        "valueDtype": "FP8",
        "dtypeCheck": "Warn",
        "swapSpace": "4Gi",
        "diskCache": {"size": "20Gi"},
        "prefixCache": "BlockHash",
    },
    "apiKeys": {"secretRef": {"name": "clients", "key": "chat"}},
    "resources": {
        "accelerators": {"resourceName": "amd.com/gpu"},
        "requests": {"cpu": 2, "memory": "8Gi", "ephemeral-storage": "20Gi"},
        "limits": {"cpu": "4", "memory": "8Gi"},
    },
    "scaling": {"maxReplicas": 4},
    "rollout": {"strategy": "Surge"},
    "startup": {"timeout": "10m"},
    "drain": {"timeout": "90s"},
    "template": {
        "labels": {"team": "search"},
        "annotations": {"example.com/note": "yes"},
        "serviceAccountAnnotations": {"example.com/role": "r"},
        "nodeSelector": {"pool": "gpu"},
        "priorityClassName": "serving",
        "runtimeClassName": "nvidia",
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
        "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}],
        "imagePullSecrets": [{"name": "registry"}],
        "env": [{"name": "NCCL_DEBUG", "value": "WARN"}],
    },
}
POOLS: dict[str, dict[str, Any]] = {"every-group": EVERY_GROUP} | {
    path.stem: document["spec"]
    for path in sorted((ROOT / "examples").glob("*.yaml"))
    if (document := yaml.safe_load(path.read_text())).get("kind") == "InferencePool"
}


def with_defaults(value: Any, schema: Mapping[str, Any]) -> Any:
    """As the API server fills in the schema's defaults."""
    if not isinstance(value, Mapping):
        return value
    fields = schema.get("properties") or {}
    filled = {name: with_defaults(item, fields.get(name, {})) for name, item in value.items()}
    for name, field in fields.items():
        if name not in filled and "default" in field:
            filled[name] = with_defaults(field["default"], field)
    return filled


def seen(name: str, spec: Mapping[str, Any]) -> Observed:
    pool = make_pool(**with_defaults(spec, SCHEMA["openAPIV3Schema"]["properties"]["spec"]))
    pool["metadata"]["name"] = name
    return observe(PoolKey("demo", name), pool, FakeCluster(pool), NOW)


def recorded(name: str) -> str:
    """What this tree stores of an example, as a file."""
    observed = seen(name, POOLS[name])
    suffix = "-cpu" if observed.pool.spec.resources.device == "CPU" else ""
    plan = plan_revisions((), None, observed, EngineImage(f"kvik/engine:{VERSION}{suffix}", "IfNotPresent"))
    (revision,) = plan.write
    plain = json.loads(json.dumps({"spec": observed.raw_spec, "revision": revision}))
    return yaml.safe_dump(plain, sort_keys=False, width=120)


@pytest.mark.parametrize("name", POOLS)
def test_this_version_stores_what_is_recorded(name: str) -> None:
    """A change here reaches pools with their next revision: record it with UPDATE_GOLDEN=1 if that is meant."""
    path, made = RELEASED / VERSION / f"{name}.yaml", recorded(name)
    if os.environ.get("UPDATE_GOLDEN") and f"## {VERSION} (not released)" in (ROOT / "CHANGELOG.md").read_text():
        path.parent.mkdir(exist_ok=True)
        path.write_text(made)
    assert path.exists(), f"UPDATE_GOLDEN=1 records what {VERSION} stores"
    assert made == path.read_text()


FILES = sorted(RELEASED.glob("*/*.yaml"))
PARAMETERS = [pytest.param(path, id=f"{path.parent.name}-{path.stem}") for path in FILES]


def plan_later(path: Path, **changed: Any) -> tuple[Observed, Mapping[str, Any], RevisionPlan]:
    """What a later operator makes of a recorded pool that it finds in a cluster."""
    document = yaml.safe_load(path.read_text())
    observed, stored = seen(path.stem, {**document["spec"], **changed}), deepcopy(document["revision"])
    stored["metadata"]["uid"] = "a-uid"
    assert stored["metadata"]["ownerReferences"][0]["uid"] == UID
    return observed, stored, plan_revisions([stored], None, observed, NEWER)


@pytest.mark.parametrize("path", PARAMETERS)
def test_a_stored_revision_of_every_version_is_applied_as_it_is(path: Path) -> None:
    observed, stored, plan = plan_later(path)
    assert (plan.use.name, plan.use.template, plan.use.image) == (
        stored["metadata"]["name"],
        stored["data"]["template"],
        stored["data"]["image"],
    )
    assert plan.delete == ()
    assert all(manifest["data"] == stored["data"] for manifest in plan.write), "what is stored never changes"
    options = ReconcileOptions(images=EngineImages(NEWER.reference, NEWER.reference))
    wanted = desired(with_values_of(observed, plan.use), plan.use, options, lambda _: None)
    (deployment,) = (one for one in wanted.manifests if one["kind"] == ChildKind.DEPLOYMENT)
    assert deployment["spec"]["template"] == stored["data"]["template"]


@pytest.mark.parametrize("path", PARAMETERS)
def test_a_change_of_such_a_pool_keeps_its_engine(path: Path) -> None:
    _, stored, plan = plan_later(path, drain={"timeout": "77s"})
    assert plan.use.name != stored["metadata"]["name"]
    assert version_of(plan.use.image) == Version.parse(path.parent.name)
    assert "--drain-timeout=77s" in plan.use.template["spec"]["containers"][0]["args"]


@pytest.mark.parametrize("path", PARAMETERS)
def test_the_values_of_then_are_still_read(path: Path) -> None:
    """A later class table must not be told as what the pods run with."""
    observed, stored, plan = plan_later(path)
    later = replace(observed.effective, batching=replace(observed.effective.batching, max_requests=12_345))
    shown = with_values_of(replace(observed, effective=later), plan.use).effective.batching
    assert shown.max_requests == stored["data"]["effective"]["batching"]["max_requests"]


def test_every_released_version_is_recorded() -> None:
    """A heading without "(not released)" is a release."""
    headings = re.findall(
        r"^## (\d+\.\d+\.\d+\S*)(?: \(not released\))?", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE
    )
    assert set(headings) | {VERSION} == {path.parent.name for path in FILES}
