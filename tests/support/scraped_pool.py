"""What a Prometheus scrapes of one pool: an engine's page, and that of an operator that serves the pool."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import yaml

from kvik_operator.kube.store import Store
from kvik_operator.names import KIND
from kvik_operator.telemetry import probes
from kvik_operator.telemetry.metrics import OperatorMetrics
from tests.cluster.free_ports import free_ports
from tests.support.alert_rules import RULES
from tests.support.pools import KEY, make_pool

CONDITIONS = [{"type": "Ready", "status": "True", "reason": "PodsReady"}]
STATUS = {"conditions": CONDITIONS, "readyReplicas": 1, "startup": {"scheduled": "3s", "warm": "9s"}}
TARGETS = {"demo/chat-1": {"namespace": KEY.namespace, "pool": KEY.name, "pod": "chat-1"}}


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
