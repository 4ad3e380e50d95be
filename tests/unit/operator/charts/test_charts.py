"""The charts against the rest of the tree: one API file, one version, exactly the verbs that the code uses."""

import json
import re
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[4]
CRD = ROOT / "crds" / "inferencepools.kvik.dev.yaml"
CHARTS = ROOT / "charts"
METRICS_API = "metrics-api.yaml"
KEDA = "keda.yaml"


def test_the_charts_copy_of_the_api_is_the_api() -> None:
    assert (CHARTS / "kvik-crds" / "templates" / CRD.name).read_text() == CRD.read_text()


def test_the_api_outlives_an_uninstall_and_holds_nothing_that_helm_would_render() -> None:
    text = CRD.read_text()
    assert yaml.safe_load(text)["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    assert "{{" not in text


def test_charts_and_local_values_carry_the_version() -> None:
    version = (ROOT / "VERSION").read_text().strip()
    for chart in CHARTS.iterdir():
        metadata = yaml.safe_load((chart / "Chart.yaml").read_text())
        assert (metadata["version"], metadata["appVersion"]) == (version, version)
    local = yaml.safe_load((ROOT / "examples" / "local-values.yaml").read_text())
    assert local["image"]["engine"]["cpu"]["tag"] == f"{version}-demo"


def test_every_value_has_a_place_in_the_schema() -> None:
    values: dict[str, Any] = yaml.safe_load((CHARTS / "kvik" / "values.yaml").read_text())
    schema: dict[str, Any] = json.loads((CHARTS / "kvik" / "values.schema.json").read_text())

    def paths(value: Any, prefix: str = "") -> set[str]:
        if not isinstance(value, dict) or not value:
            return {prefix}
        return {path for name, item in value.items() for path in paths(item, f"{prefix}.{name}")}

    def known(path: str) -> bool:
        node = schema
        for name in path.split(".")[1:]:
            node = node.get("properties", {}).get(name, {})
            if "$ref" in node:
                node = schema["definitions"][node["$ref"].rsplit("/", 1)[1]]
            if node.get("type") == "object" and "properties" not in node:
                return True
        return bool(node)

    assert [path for path in sorted(paths(values)) if not known(path)] == []


def test_the_operator_is_granted_these_verbs_and_no_others() -> None:
    """No Secrets, no roles, no exec, no wildcard; `delete` only where a child can become unwanted."""
    helpers = (CHARTS / "kvik" / "templates" / "_helpers.tpl").read_text()
    rules = re.search(
        r'define "kvik.poolRules" -}}\n(.*?){{- if .Values.keda.enabled }}(.*?){{- end', helpers, re.DOTALL
    )
    assert rules is not None
    granted: dict[str, list[str]] = {}
    for rule in yaml.safe_load(rules[1] + rules[2]):
        for resource in rule["resources"]:
            (group,) = rule["apiGroups"]
            granted[f"{resource}.{group}".rstrip(".")] = rule["verbs"]
    applied = ["get", "list", "watch", "create", "patch"]
    assert granted == {
        "inferencepools.kvik.dev": ["get", "list", "watch"],
        "inferencepools/status.kvik.dev": ["patch"],
        "inferencepools/scale.kvik.dev": ["patch"],
        "deployments.apps": applied,
        "controllerrevisions.apps": ["list", "create", "patch", "delete"],
        "services": applied,
        "serviceaccounts": applied,
        "poddisruptionbudgets.policy": applied,
        "networkpolicies.networking.k8s.io": [*applied, "delete"],
        "horizontalpodautoscalers.autoscaling": [*applied, "delete"],
        "pods": ["list", "watch", "patch"],
        "events": ["create", "patch"],
        "scaledobjects.keda.sh": [*applied, "delete"],
    }


def test_the_metrics_api_adds_its_own_secret_its_api_services_and_questions_about_callers() -> None:
    text = (CHARTS / "kvik" / "templates" / METRICS_API).read_text()
    assert re.findall(r"resources: \[(.*?)\]", text) == ["secrets", "subjectaccessreviews", "apiservices"]
    assert re.findall(r"verbs: \[(.*?)\]", text) == ["get, update", "create", "get, patch"]
    assert text.count("resourceNames:") == 2


def test_keda_adds_two_secrets_by_name() -> None:
    text = (CHARTS / "kvik" / "templates" / KEDA).read_text()
    assert re.findall(r"resources: \[(.*?)\]", text) == ["secrets"]
    assert re.findall(r"verbs: \[(.*?)\]", text) == ["get, update"]
    assert text.count("resourceNames:") == 1


def test_the_operators_own_roles_reach_nothing_but_its_lease() -> None:
    templates = sorted((CHARTS / "kvik" / "templates").glob("*.yaml"))
    text = "".join(path.read_text() for path in templates if path.name not in (METRICS_API, KEDA))
    assert re.findall(r"resources: \[(.*?)\]", text) == ["leases", "leases"]
    assert re.findall(r"verbs: \[(.*?)\]", text) == ["get, update", "create"]
