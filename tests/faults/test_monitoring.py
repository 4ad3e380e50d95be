"""What the chart brings for Prometheus and Grafana, and that the Prometheus operator's own schema takes it."""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.control_plane import RunningControlPlane
from tests.support.kubectl import wait_for
from tests.support.prometheus_operator import crd
from tests.support.rendered_chart import helm_template, of_kind, render

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "kvik"
PLURALS = ("podmonitors", "prometheusrules")
ALL = [f"--set=monitoring.{name}.enabled=true" for name in ("podMonitors", "rules", "dashboards")]


@pytest.fixture
def served(shared_plane: RunningControlPlane) -> Iterator[RunningControlPlane]:
    """A control plane that serves PodMonitors and PrometheusRules."""
    files = [f"--filename={crd(plural)}" for plural in PLURALS]
    shared_plane.run_kubectl("apply", "--server-side", *files)
    try:
        for plural in PLURALS:
            wait_for(f"{plural} to be served", partial(served_by, shared_plane, plural), 30)
        yield shared_plane
    finally:
        shared_plane.run_kubectl("delete", "--ignore-not-found", *files)


def served_by(plane: RunningControlPlane, plural: str) -> bool:
    return plane.run_kubectl("get", "--raw", f"/apis/monitoring.coreos.com/v1/{plural}", check=False) != ""


def dry_run(plane: RunningControlPlane, documents: list[dict[str, Any]], folder: Path) -> str:
    """What the API server makes of new objects, without keeping them."""
    file = folder / "objects.yaml"
    file.write_text(yaml.safe_dump_all(documents))
    return plane.run_kubectl("create", "--dry-run=server", "--validate=strict", "--namespace=kvik-system", f"-f={file}")


def test_the_schema_of_the_prometheus_operator_takes_monitors_and_rules(
    served: RunningControlPlane, tmp_path: Path
) -> None:
    documents = render(*ALL, "--set=watch.namespaces={a,b}")
    ours = of_kind(documents, "PodMonitor") + of_kind(documents, "PrometheusRule")
    assert len(ours) == 3
    told = dry_run(served, ours, tmp_path)
    assert told.count("created (server dry run)") == 3
    (rule,) = of_kind(documents, "PrometheusRule")
    rule["spec"]["groups"][0]["interval"] = "often"
    with pytest.raises(Exception, match="interval"):
        dry_run(served, [rule], tmp_path)


def test_nothing_of_it_is_there_until_asked_for() -> None:
    kinds = {document["kind"] for document in render()}
    assert kinds.isdisjoint({"PodMonitor", "PrometheusRule", "ConfigMap"})


def test_the_rule_object_is_the_rule_file() -> None:
    (rule,) = of_kind(render(*ALL, "--set=monitoring.rules.labels.release=prom"), "PrometheusRule")
    assert rule["spec"] == yaml.safe_load((CHART / "rules" / "kvik.rules.yaml").read_text())
    assert rule["metadata"]["labels"]["release"] == "prom"


def test_the_dashboard_comes_whole_with_the_label_of_grafanas_sidecar() -> None:
    (shipped,) = of_kind(render(*ALL), "ConfigMap")
    assert shipped["metadata"]["labels"]["grafana_dashboard"] == "1"
    (content,) = shipped["data"].values()
    assert json.loads(content) == json.loads((CHART / "dashboards" / "pools.json").read_text())


def test_engines_are_found_by_their_labels_and_get_the_label_that_rules_rely_on() -> None:
    engines, operator = of_kind(render(*ALL), "PodMonitor")
    assert engines["spec"]["namespaceSelector"] == {"any": True}
    (endpoint,) = engines["spec"]["podMetricsEndpoints"]
    (relabeling,) = endpoint["relabelings"]
    assert (endpoint["port"], relabeling["targetLabel"]) == ("metrics", "pool")
    pod_labels = yaml.safe_load((ROOT / "tests/data/released/0.1.0/smollm2.yaml").read_text())
    text = yaml.safe_dump(pod_labels)
    for name, value in engines["spec"]["selector"]["matchLabels"].items():
        assert f"{name}: {value}" in text
    (endpoint,) = operator["spec"]["podMetricsEndpoints"]
    assert endpoint["honorLabels"] is True
    (deployment,) = of_kind(render(*ALL), "Deployment")
    template = deployment["spec"]["template"]
    assert operator["spec"]["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    assert endpoint["port"] in [port["name"] for port in template["spec"]["containers"][0]["ports"]]


def test_engines_are_looked_for_where_pools_are_served() -> None:
    engines, _ = of_kind(render(*ALL, "--set-string=watch.namespaces={123}"), "PodMonitor")
    assert engines["spec"]["namespaceSelector"] == {"matchNames": ["123"]}


def test_an_interval_that_is_none_is_refused() -> None:
    done = helm_template(*ALL, "--set=monitoring.podMonitors.interval=often")
    assert done.returncode != 0
    assert "monitoring" in done.stderr


@pytest.mark.parametrize(("interval", "fits"), [("15s", True), ("15000ms", True), ("16s", False), ("1m", False)])
def test_an_interval_that_is_too_long_for_the_rules_is_refused_with_them(interval: str, fits: bool) -> None:
    value = f"--set=monitoring.podMonitors.interval={interval}"
    done = helm_template(*ALL, value)
    assert (done.returncode == 0) is fits
    assert fits or "monitoring.podMonitors.interval can be 15s at most" in done.stderr
    assert helm_template(*ALL, value, "--set=monitoring.rules.enabled=false").returncode == 0
