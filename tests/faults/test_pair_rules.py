"""What the schema refuses for two fields together is what the engine refuses for their flags, and the other way round.

The rules are two lists, CEL in the CRD and cli/option_rules.py with cli/class_defaults.py in the engine. Every
combination of the fields that they speak of goes to a real API server and, as the operator writes it, to the engine's
own check of its options: a pool that is stored must start, and one that would not start must not be stored.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes import client, config
from kubernetes.client.exceptions import ApiException

from kvik_engine.cli.option_rules import RULES
from kvik_engine.errors import StartError
from kvik_operator.objects.engine_flags import SERVE
from tests.support.control_plane import RunningControlPlane
from tests.support.engine_reads import engine_reads
from tests.support.pools import SOURCE, spec_of

pytestmark = pytest.mark.timeout(600)

CRD = Path(__file__).resolve().parents[2] / "crds" / "inferencepools.kvik.dev.yaml"

Fields = Mapping[str, tuple[Any, ...]]
"""By path, the values of a field; None: the field is absent."""
MEMORY: Fields = {
    "batching.preemption.mode": (None, "Auto", "Swap", "Recompute"),
    "batching.preemption.swapThresholdTokens": (None, 0, 1000),
    "kvCache.swapSpace": (None, "1Gi"),
    "kvCache.prefixCache": (None, "Radix", "Disabled"),
    "kvCache.size": (None, "1Gi"),
    "kvCache.memoryPercent": (None, 85),
}
DISK: Fields = {
    "kvCache.diskCache.size": (None, 0, "2Gi"),
    "kvCache.swapSpace": (None, "1Gi"),
    "kvCache.prefixCache": (None, "BlockHash", "Disabled"),
    "batching.preemption.mode": (None, "Recompute"),
}
ADMISSION: Fields = {
    "batching.admission": (None, "Queue", "Goodput"),
    "slo.class": (None, "Interactive", "Batch"),
    "slo.ttft": (None, "1s"),
}
WEIGHTS: Fields = {
    "model.source": (SOURCE,),
    "model.quantization": (None, "None", "INT8"),
    "model.dtype": (None, "Auto", "FP32", "BF16", "FP16"),
    "resources.device": (None, "GPU", "CPU"),
}
STEPS: Fields = {
    "batching.maxRequests": (None, 8, 64, 128),
    "batching.maxBatchTokens": (None, 64, 512),
    "batching.chunkedPrefillTokens": (None, 64, 256, 1024),
    "slo.class": (None, "Batch"),
    "resources.device": ("GPU", "CPU"),
}


@dataclass(frozen=True, slots=True)
class Verdict:
    """Of one combination: why each refuses it, None where it does not."""

    groups: dict[str, Any]
    schema: str | None
    engine: str | None


def combinations(fields: Fields) -> Iterator[dict[str, Any]]:
    for values in product(*fields.values()):
        groups: dict[str, Any] = {}
        for path, value in zip(fields, values, strict=True):
            if value is not None:
                *parents, name = path.split(".")
                group = groups
                for parent in parents:
                    group = group.setdefault(parent, {})
                group[name] = value
        yield groups


def refused_by_schema(api: client.CustomObjectsApi, groups: Mapping[str, Any]) -> str | None:
    pool = {
        "apiVersion": "kvik.dev/v1alpha1",
        "kind": "InferencePool",
        "metadata": {"name": "chat"},
        "spec": {"model": {"source": SOURCE}, **groups},
    }
    try:
        api.create_namespaced_custom_object("kvik.dev", "v1alpha1", "default", "inferencepools", pool, dry_run="All")
    except ApiException as refused:
        message: str = json.loads(refused.body)["message"]
        return message
    return None


def refused_by_engine(groups: dict[str, Any]) -> str | None:
    try:
        engine_reads(spec_of(**groups))
    except StartError as refused:
        return str(refused)
    return None


@pytest.fixture(scope="module")
def verdicts(shared_plane: RunningControlPlane) -> Iterator[list[Verdict]]:
    with config.new_client_from_config(str(shared_plane.kubeconfig)) as connection:
        api = client.CustomObjectsApi(connection)
        yield [
            Verdict(groups, refused_by_schema(api, groups), refused_by_engine(groups))
            for fields in (WEIGHTS, MEMORY, DISK, ADMISSION, STEPS)
            for groups in combinations(fields)
        ]
        connection.rest_client.pool_manager.clear()  # the client leaves its connections to the collector


def test_schema_and_engine_refuse_the_same_combinations(verdicts: list[Verdict]) -> None:
    differing = [one for one in verdicts if (one.schema is None) != (one.engine is None)]
    assert differing == []
    refused = sum(one.engine is not None for one in verdicts)
    assert 0 < refused < len(verdicts)


def test_every_rule_of_the_engine_that_a_pool_can_break_is_among_them(verdicts: list[Verdict]) -> None:
    """A new rule needs its fields above, and a rule in the schema, unless it is about flags that one field sets
    together.
    """
    told = {one.engine for one in verdicts}
    flags_of = {rule.message: {*re.findall(r"--([a-z-]+)", rule.message)} for rule in RULES}
    expressible = [
        message
        for message, flags in flags_of.items()
        if flags <= SERVE.keys() and len({SERVE[flag].field for flag in flags}) > 1
    ]
    assert len(expressible) >= 8
    assert [message for message in expressible if not any(message in (one or "") for one in told)] == []


def test_every_rule_of_the_schema_about_two_engine_fields_is_among_them(verdicts: list[Verdict]) -> None:
    told = " ".join(one.schema or "" for one in verdicts)
    assert [words for words in pair_rules() if words not in told] == []


def pair_rules() -> list[str]:
    """What the rules say that stand at a group of fields which flags of `kvik serve` carry."""
    version = yaml.safe_load(CRD.read_text())["spec"]["versions"][0]
    spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
    model, batching, cache = (spec["properties"][name] for name in ("model", "batching", "kvCache"))
    groups = (spec, model, batching, batching["properties"]["preemption"], cache)
    rules = [rule for group in groups for rule in group["x-kubernetes-validations"]]
    return [rule["message"].partition(":")[0] for rule in rules if "secretRef" not in rule["rule"]]
