"""Each query of the dashboard returns data from a real Prometheus that scrapes a real engine and an operator's page."""

import asyncio
import contextlib
import json
import math
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import yaml

from kvik_operator.kube.store import Store
from kvik_operator.names import KIND
from kvik_operator.telemetry import probes
from kvik_operator.telemetry.metrics import OperatorMetrics
from tests.cluster.free_ports import free_ports
from tests.integration.test_alerts import RULES, alerts
from tests.support.live_engine import LiveEngine
from tests.support.pools import KEY, make_pool
from tests.support.prometheus import RunningPrometheus, running_prometheus
from tests.support.waiting import PATIENCE

DASHBOARD = RULES.parents[1] / "dashboards" / "pools.json"
CONDITIONS = [{"type": "Ready", "status": "True", "reason": "PodsReady"}]
STATUS = {"conditions": CONDITIONS, "readyReplicas": 1, "startup": {"scheduled": "3s", "warm": "9s"}}
TARGETS = {"demo/chat-1": {"namespace": KEY.namespace, "pool": KEY.name, "pod": "chat-1"}}


def dashboard() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(DASHBOARD.read_text())
    return content


def queries() -> Iterator[tuple[str, str]]:
    """Panel and expression, with its variables as Grafana fills them in."""
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", ()):
            expression = target["expr"].replace("$__rate_interval", "1m")
            yield panel["title"], expression.replace("$namespace", KEY.namespace).replace("$pool", KEY.name)


def operator_page() -> OperatorMetrics:
    """The page of an operator that has seen, read, scaled and written."""
    store = Store()
    store.upsert(KIND, make_pool(status=STATUS, slo={"class": "Balanced"}, scaling={"maxReplicas": 4}))
    metrics = OperatorMetrics("1", store)
    metrics.decided(KEY, 0.5, 1)
    metrics.scaled(KEY, "up")
    for name in ("kvik_operator_queue_depth", "kvik_operator_queue_oldest_seconds", "kvik_operator_leader"):
        metrics.gauge(name, name, lambda: 1.0)
    return metrics


@contextlib.asynccontextmanager
async def served(metrics: OperatorMetrics) -> AsyncIterator[int]:
    """The port of an operator's page that goes on counting."""
    (port,) = free_ports("127.0.0.1", 1)

    def page() -> bytes:
        metrics.reconciled(0.02, "ok")
        metrics.scraped("ok")
        metrics.wrote("patch", "ok")
        return metrics.page()

    server = asyncio.create_task(probes.serve("127.0.0.1", port, live=tuple, ready=tuple, metrics=page))
    try:
        yield port
    finally:
        server.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await server


def scraping(folder: Path, engine_port: int, operator_port: int) -> dict[str, Any]:
    """As docs/monitoring.md has it, only faster."""
    rules = yaml.safe_load(RULES.read_text())
    groups = [{**group, "interval": "1s"} for group in rules["groups"]]
    (folder / "rules.yaml").write_text(yaml.safe_dump({"groups": groups}))
    engine = {"targets": [f"127.0.0.1:{engine_port}"], "labels": {**TARGETS["demo/chat-1"]}}
    operator = {"targets": [f"127.0.0.1:{operator_port}"], "labels": {"namespace": "kvik-system", "pod": "operator-1"}}
    return {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(folder / "rules.yaml")],
        "scrape_configs": [
            {"job_name": "engines", "static_configs": [engine]},
            {"job_name": "operator", "honor_labels": True, "static_configs": [operator]},
        ],
    }


def without_data(prometheus: RunningPrometheus) -> list[tuple[str, str]]:
    return [
        (panel, expression)
        for panel, expression in queries()
        if not any(not math.isnan(value) for _, value in prometheus.query(expression))
    ]


async def test_every_query_of_the_dashboard_returns_data(engine: LiveEngine, tmp_path: Path) -> None:
    def chat() -> None:
        message = {"role": "user", "content": "Count from one to ten."}
        engine.openai.chat.completions.create(model="smollm2", messages=[message], max_tokens=8)  # type: ignore[list-item]

    async with served(operator_page()) as operator_port:
        config = scraping(tmp_path, engine.metrics_port, operator_port)
        with running_prometheus(tmp_path / "prometheus", config) as prometheus:
            missing = [("all", "")]
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(2 * PATIENCE):
                    while missing:
                        await asyncio.to_thread(chat)
                        missing = await asyncio.to_thread(without_data, prometheus)
            assert missing == []
            told = await asyncio.to_thread(prometheus.get, "rules")
    health = {rule["name"]: rule["health"] for group in told["groups"] for rule in group["rules"]}
    assert set(alerts()) <= set(health)
    assert set(health.values()) == {"ok"}


def test_the_dashboard_is_one_that_grafana_can_import() -> None:
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        if panel["type"] != "row":
            assert panel["targets"], panel["title"]
            assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    names = [variable["name"] for variable in dashboard()["templating"]["list"]]
    assert names == ["datasource", "namespace", "pool"]
