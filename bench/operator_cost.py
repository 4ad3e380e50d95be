"""What the operator costs: `python -m bench.operator_cost [reading] [idle]`; without arguments both.

reading: 2,000 pods of 200 pools that answer on loopback addresses, read and decided on every five seconds; the share of
a core is processor time of the operator's scale flow, so that other work of the machine hardly counts.
idle: an operator on a control plane without kubelet, with 200 scaled pools of one idle pod each: its requests to the
API server, as a proxy before that counts them, and its memory.
"""

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from aiohttp import web

from bench.report import Report
from kvik_operator.autoscale.board import Board
from kvik_operator.autoscale.drivers import Means
from kvik_operator.autoscale.loop import ScaleLoop
from kvik_operator.autoscale.rivals import Rivals
from kvik_operator.autoscale.scrape import Scraper
from kvik_operator.autoscale.types import PERIOD_SECONDS
from kvik_operator.kube.kinds import POD
from kvik_operator.kube.store import Store
from kvik_operator.names import KIND, LABEL_POOL, PORT_METRICS, PoolKey
from kvik_operator.reconcile.types import PlannedEvent
from kvik_operator.telemetry.metrics import OperatorMetrics
from tests.support.control_plane import control_plane
from tests.support.operator_rig import Rig, eventually, rig
from tests.support.running_operator import install
from tests.support.stub_engine.engine import StubEngine, StubOptions
from tests.support.stub_engine.http import metrics_app

POOLS, PODS_EACH = 200, 10
ROUNDS: Final = 12
IDLE_SECONDS: Final = 300.0
"""What is written least often is written once in five minutes."""
MOST_CORES, MOST_REQUESTS, MOST_MEGABYTES = 0.3, 5.0, 150.0
NAMESPACE: Final = "demo"
ENGINE: Final = StubOptions("stub", 32, 256, 728, 16, 50.0, 1000.0, 0.0, 0.0, 1.0)


def address(pod: int) -> str:
    return f"127.77.{pod // 250}.{pod % 250 + 1}"


# --- reading ---


async def serve_engines() -> None:
    """As many metrics ports as there are pods, until killed."""

    runner = web.AppRunner(metrics_app(StubEngine(ENGINE)), access_log=None)
    await runner.setup()
    for pod in range(POOLS * PODS_EACH):
        await web.TCPSite(runner, address(pod), PORT_METRICS).start()
    print("serving", flush=True)
    await asyncio.Event().wait()


@contextmanager
def engines() -> Iterator[None]:
    """In a process of their own: their time is not the operator's."""
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.operator_cost", "--serve-engines"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "serving\n", "the engines did not start"
        yield
    finally:
        process.kill()
        process.wait()


def store_of_pools() -> Store:
    store = Store()
    for number in range(POOLS):
        name = f"pool-{number}"
        spec = {"model": {"source": "file:///m"}, "replicas": PODS_EACH, "scaling": {"maxReplicas": 2 * PODS_EACH}}
        metadata = {"namespace": NAMESPACE, "name": name, "uid": f"uid-{name}", "generation": 1}
        store.upsert(KIND, {"metadata": metadata, "spec": spec})
        for pod in range(PODS_EACH):
            labelled = {"namespace": NAMESPACE, "labels": {LABEL_POOL: name}}
            own = {"name": f"{name}-{pod}", "uid": f"{name}-{pod}"}
            status = {"podIP": address(number * PODS_EACH + pod), "conditions": [{"type": "Ready", "status": "True"}]}
            store.upsert(POD, {"metadata": labelled | own, "status": status})
    return store


class NoApiServer:
    """The load stays as it is, so nothing is written; reading is what is measured."""

    async def scale_pool(self, pool: Mapping[str, Any], replicas: int) -> None:
        raise AssertionError("nothing should be scaled")

    async def read_pool(self, key: PoolKey) -> Mapping[str, Any] | None:
        return None

    def emit(self, event: PlannedEvent) -> None: ...

    async def autoscalers(self, namespace: str | None) -> Sequence[Mapping[str, Any]]:
        return []


async def seconds_of_a_round() -> tuple[float, int]:
    """Processor seconds of one round, mean of ROUNDS, and how many pods were heard in the last."""
    store, server = store_of_pools(), NoApiServer()
    board, metrics = Board(time.monotonic), OperatorMetrics("bench", store)
    async with Scraper(time.monotonic, metrics) as scraper:
        loop = ScaleLoop(
            store=store,
            board=board,
            scraper=scraper,
            writer=server,
            rivals=Rivals(server.autoscalers, time.monotonic, everywhere=True),
            means=Means,
            meter=metrics,
            may_write=lambda: True,
            enqueue=lambda keys: None,
            clock=time.monotonic,
            utcnow=lambda: datetime.now(UTC),
        )
        await loop.round()  # each pod's /info, which is read once
        begun = time.process_time()
        for _ in range(ROUNDS):
            began = time.monotonic()
            await loop.round()
        spent = (time.process_time() - begun) / ROUNDS
    heard = sum(
        (reading := board.latest(f"pool-{number}-{pod}")) is not None and reading.at >= began
        for number in range(POOLS)
        for pod in range(PODS_EACH)
    )
    return spent, heard


def measure_reading(report: Report) -> None:
    with engines():
        seconds, heard = asyncio.run(seconds_of_a_round())
    report.line(f"pods heard in a round, of {POOLS * PODS_EACH}", str(heard), heard)
    cores = seconds / PERIOD_SECONDS
    report.line("cores for reading and deciding every 5 s", f"{cores:.2f}", cores, most=MOST_CORES)


# --- idle ---


def measure_idle(report: Report) -> None:
    with tempfile.TemporaryDirectory() as folder, control_plane(Path(folder, "plane")) as plane:
        install(plane)
        with rig(plane, Path(folder)) as running:
            proxy = running.proxy()
            operator = running.operator(proxy=proxy)
            for number in range(POOLS):
                running.create(f"pool-{number}", scaling={"maxReplicas": 4})
            eventually("all pools to be ready", lambda: ready(running) == POOLS, 1200, running.explain)
            time.sleep(30)  # what their start has left to write
            begun, before = time.monotonic(), len(proxy.requests)
            time.sleep(IDLE_SECONDS)
            rate = (len(proxy.requests) - before) / (time.monotonic() - begun)
            memory = (operator.metric("process_resident_memory_bytes") or 0.0) / 1024 / 1024
    report.line(f"API requests a second, {POOLS} idle pools", f"{rate:.2f}", rate, most=MOST_REQUESTS)
    report.line(f"resident memory, {POOLS} idle pools", f"{memory:.0f} MB", memory, most=MOST_MEGABYTES)


def ready(running: Rig) -> int:
    """Pools that are, and whose scaling has begun."""
    pools = json.loads(running.kubectl("get", "inferencepools.kvik.dev", "-ojson"))["items"]
    return sum(
        {("Ready", "True"), ("ScalingActive", "True")}
        <= {(one["type"], one["status"]) for one in pool.get("status", {}).get("conditions", ())}
        for pool in pools
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.operator_cost", description=__doc__)
    parser.add_argument("what", nargs="*", choices=["reading", "idle", []], help="one of both; default: both")
    parser.add_argument("--serve-engines", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve_engines:
        asyncio.run(serve_engines())
        return
    report = Report("operator_cost", {"pools": POOLS, "pods": f"{PODS_EACH} each, or 1 idle"})
    for name, measure in (("reading", measure_reading), ("idle", measure_idle)):
        if name in (options.what or ("reading", "idle")):
            measure(report)
    report.write()


if __name__ == "__main__":
    main()
