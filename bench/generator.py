"""What `kvik bench` itself costs, and whether it sees what the engine sees: part of `make bench`.

Beside a server that computes nothing, the generator's processor time is its own, and so are the times that it tells.
Beside the real engine, its tokens and latencies are held against the engine's own counters and histograms.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import uvloop
from prometheus_client.parser import text_string_to_metric_families

from bench.figures import answers, engine, free_port
from bench.report import Report
from kvik_engine.bench.endpoint import Chats, Endpoint, session
from kvik_engine.bench.figures import Figures, Slo, figures
from kvik_engine.bench.load import closed
from kvik_engine.bench.prompts import write
from kvik_engine.bench.workloads import Workload, conversations

MOST_SHARE = 0.05
"""Of one processor at 200 tokens a second, the rate of the CPU path at its best."""
RATE = 200
PACE_MS = 5.0
ENGINE_OPTIONS = ("--threads", "1")
TIMEOUT = 120.0
OLDEST_METRICS = 0.25
"""Seconds that the engine's page may be behind."""


@dataclass(frozen=True, slots=True)
class Sent:
    figures: Figures
    cpu_seconds: float
    """Of this process, from the first request to the end of the last one."""


async def send(base: str, clients: int, requests: int, output_tokens: int) -> Sent:
    workload = Workload("random", 64, output_tokens, 0, 1, 1)
    async with session(TIMEOUT, None) as http:
        endpoint = Endpoint(http, base)
        (model,) = await endpoint.models()
        chats = Chats(endpoint, model, ignore_eos=True)
        scripts = await write(workload, conversations(workload, requests, "0"), "0", chats.count)
        before = time.process_time()
        results = await closed(scripts.scripts, clients, chats.chat)
        return Sent(figures(results, Slo()), time.process_time() - before)


@contextmanager
def null_server(pace_ms: float) -> Iterator[str]:
    """Its URL."""
    port = free_port()
    process = subprocess.Popen([sys.executable, "-m", "bench.null_server", str(port), str(pace_ms)])
    try:
        while not answers(f"http://127.0.0.1:{port}/v1/models"):
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(30)


def own_cost(report: Report, requests: int) -> None:
    with null_server(0) as url:
        alone = uvloop.run(send(url, 1, requests, 1))
        many = uvloop.run(send(url, 16, 4 * requests, 1))
    assert alone.figures.ttft is not None
    first, each = alone.figures.ttft.p50, many.cpu_seconds / (4 * requests)
    report.line("TTFT of a server that answers at once, 1 client, P50", f"{1e3 * first:.2f} ms", first)
    report.line("processor time of a request of 1 token, 16 clients", f"{1e3 * each:.2f} ms", each)
    with null_server(PACE_MS) as url:
        paced = uvloop.run(send(url, 8, requests, 64))
    assert paced.figures.tpot is not None
    token = (paced.cpu_seconds - requests * each) / (63 * requests)
    share = RATE * token
    report.line("processor time of a token more, each in an event that comes alone", f"{1e6 * token:.0f} us", token)
    report.line(f"share of one processor at {RATE} tokens/s", f"{100 * share:.1f} %", share, most=MOST_SHARE)
    excess = paced.figures.tpot.p50 - PACE_MS / 1000
    report.line(f"TPOT beyond the server's pauses of {PACE_MS:g} ms, 8 clients, P50", f"{1e3 * excess:.2f} ms", excess)


def beside_the_engine(report: Report, clients: int, requests: int) -> None:
    """Differences are the generator's figure less the engine's own."""
    with engine(list(ENGINE_OPTIONS)) as (_, port):
        base = f"http://127.0.0.1:{port}"
        before = counters(base)
        seen = uvloop.run(send(base, clients, requests, 32)).figures
        time.sleep(2 * OLDEST_METRICS)
        engines = {name: value - before.get(name, 0.0) for name, value in counters(base).items()}
    assert not seen.failed, seen.examples
    assert seen.ttft is not None
    assert seen.e2e is not None
    for what, mine, name in (
        ("output tokens", seen.output_tokens, "kvik_generation_tokens_total"),
        ("prompt tokens", seen.prompt_tokens or 0, "kvik_prompt_tokens_total"),
    ):
        differ = abs(mine - engines[name])
        report.line(f"{what} of {clients} clients, told and counted", f"{mine} and {engines[name]:.0f}", differ, most=0)
    for what, spread, name in (
        ("TTFT", seen.ttft, "kvik_time_to_first_token_seconds"),
        ("E2E", seen.e2e, "kvik_e2e_request_latency_seconds"),
    ):
        own = engines[f"{name}_sum"] / engines[f"{name}_count"]
        shown = f"{1e3 * spread.mean:.1f} and {1e3 * own:.1f} ms"
        report.line(f"mean {what} of {clients} clients, told and engine's own", shown, spread.mean - own)


def counters(base: str) -> dict[str, float]:
    """The engine's series by name; it serves one model, so each name has one but for the buckets."""
    with urllib.request.urlopen(f"{base}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    samples = (sample for family in text_string_to_metric_families(text) for sample in family.samples)
    return {sample.name: sample.value for sample in samples if "le" not in sample.labels}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bench.generator", description=__doc__)
    parser.add_argument("--requests", type=int, default=200)
    requests: int = parser.parse_args(arguments).requests
    report = Report("generator", {"requests": requests})
    own_cost(report, requests)
    for clients in (1, 8):
        beside_the_engine(report, clients, requests // 10)
    report.write()
    return 0


if __name__ == "__main__":
    sys.exit(main())
