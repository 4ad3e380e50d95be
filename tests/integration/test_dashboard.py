"""Each query of the dashboard returns data from a real Prometheus that scrapes a real engine and an operator's page."""

import asyncio
import contextlib
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.alert_rules import RULES, alerts
from tests.support.live_engine import LiveEngine
from tests.support.pools import KEY
from tests.support.prometheus import RunningPrometheus, running_prometheus
from tests.support.scraped_pool import operator_page, scraping, served
from tests.support.waiting import PATIENCE

DASHBOARD = RULES.parents[1] / "dashboards" / "pools.json"


def dashboard() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(DASHBOARD.read_text())
    return content


def queries() -> Iterator[tuple[str, str]]:
    """Panel and expression, with its variables as Grafana fills them in."""
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", ()):
            expression = target["expr"].replace("$__rate_interval", "1m")
            yield panel["title"], expression.replace("$namespace", KEY.namespace).replace("$pool", KEY.name)


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
