"""The examples of scaling by Prometheus: each query gives the formula's figure, one of them, or none; never 0."""

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from tests.support.alert_rules import RULES
from tests.support.live_engine import LiveEngine
from tests.support.pools import KEY
from tests.support.prometheus import RunningPrometheus, running_prometheus
from tests.support.scraped_pool import operator_page, scraping, served
from tests.support.waiting import PATIENCE

EXAMPLES = RULES.parents[3] / "examples"


def document(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((EXAMPLES / name).read_text())
    return found


def of_keda() -> str:
    """The query of KEDA's trigger, for the pool that the operator's page tells of."""
    (trigger,) = document("keda-prometheus.yaml")["spec"]["triggers"]
    query: str = trigger["metadata"]["query"]
    asked = query.replace('"default"', f'"{KEY.namespace}"').replace('"smollm2"', f'"{KEY.name}"')
    assert asked != query
    return asked


def of_the_adapter() -> str:
    """The query that prometheus-adapter makes of its template for one pool."""
    (rule,) = document("prometheus-adapter.yaml")["rules"]["custom"]
    filled = {
        "<<.Series>>": rule["seriesQuery"].partition("{")[0],
        "<<.LabelMatchers>>": f'namespace="{KEY.namespace}",pool="{KEY.name}"',
        "<<.GroupBy>>": "pool",
    }
    query: str = rule["metricsQuery"]
    for placeholder, text in filled.items():
        assert placeholder in query
        query = query.replace(placeholder, text)
    return query


async def until(prometheus: RunningPrometheus, found: Callable[[list[float]], bool]) -> dict[str, list[float]]:
    """The values of each query, once they are so for all of them, or at last."""
    values: dict[str, list[float]] = {}
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(2 * PATIENCE):
            while not values or not all(map(found, values.values())):
                for query in (of_keda(), of_the_adapter()):
                    samples = await asyncio.to_thread(prometheus.query, query)
                    values[query] = [value for _, value in samples]
    return values


async def test_the_figure_is_there_while_the_operator_tells_of_the_pool_and_absent_afterwards(
    engine: LiveEngine, tmp_path: Path
) -> None:
    async with contextlib.AsyncExitStack() as operator:
        port = await operator.enter_async_context(served(operator_page()))
        config = scraping(tmp_path, engine.metrics_port, port)
        with running_prometheus(tmp_path / "prometheus", config) as prometheus:
            assert list((await until(prometheus, lambda values: values == [1.0])).values()) == [[1.0], [1.0]]
            await operator.aclose()
            assert list((await until(prometheus, lambda values: values == [])).values()) == [[], []]


def test_both_scale_the_pool_of_the_first_example_which_has_its_own_bounds() -> None:
    pool, scaled = document("smollm2.yaml"), document("keda-prometheus.yaml")["spec"]
    named = (scaled["scaleTargetRef"], document("hpa.yaml")["spec"]["scaleTargetRef"])
    assert [target["name"] for target in named] == [pool["metadata"]["name"]] * 2
    bounds = pool["spec"]["scaling"]
    assert (scaled["minReplicaCount"], scaled["maxReplicaCount"]) == (bounds["minReplicas"], bounds["maxReplicas"])
