"""Processes that die, hang or are told to go, under streams: every client hears of it, the next one is served."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from kvik_engine.api.drain import LINGER_SECONDS
from tests.support.demo_model import demo_model
from tests.support.live_engine import LiveEngine, alive, started
from tests.support.waiting import wait_until

pytestmark = pytest.mark.timeout(300)

LONG = {"messages": [{"role": "user", "content": "Tell me a long story."}], "stream": True, "max_tokens": 1200}
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
EVENT = b"data: "


@dataclass
class Streamed:
    """What a raw client saw of a stream."""

    status: int
    head: bytes
    events: list[bytes]

    @property
    def errors(self) -> list[dict[str, object]]:
        parsed = [json.loads(e) for e in self.events if e != b"[DONE]"]
        return [e["error"] for e in parsed if "error" in e]


def stream(engine: LiveEngine, first: threading.Event | None = None, **fields: object) -> Streamed:
    """Read one stream to its end, byte by byte as it comes; `first` is set at the first text."""
    body = json.dumps(LONG | {"ignore_eos": True} | fields).encode()
    with socket.create_connection(("127.0.0.1", engine.port), timeout=120) as connection:
        connection.sendall(HEAD % len(body) + body)
        data = b""
        while chunk := connection.recv(1 << 16):
            data += chunk
            if first is not None and data.count(EVENT) >= 3:
                first.set()
            if b"data: [DONE]" in data or (b" 503 " in data[:20] and data.endswith(b"}")):
                break
    head_bytes, _, rest = data.partition(b"\r\n\r\n")
    events = [line.removeprefix(EVENT).rstrip() for line in rest.split(b"\n") if line.startswith(EVENT)]
    return Streamed(int(head_bytes.split(b" ", 2)[1]), head_bytes, events)


@pytest.fixture(scope="module")
def module_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveEngine]:
    with started(LiveEngine(tmp_path_factory.mktemp("faults"), demo_model())) as engine:
        yield engine


def streams(engine: LiveEngine, pool: ThreadPoolExecutor, count: int, **fields: object) -> list[Future[Streamed]]:
    """Streams that have all shown text."""
    firsts = [threading.Event() for _ in range(count)]
    made = [pool.submit(stream, engine, first, **fields) for first in firsts]
    assert all(first.wait(60) for first in firsts)
    return made


def tokens_in(engine: LiveEngine, seconds: float) -> int:
    """How many tokens one stream gets in that time on this machine."""
    sample, started_at = 16, time.monotonic()
    stream(engine, max_tokens=sample)
    return int(seconds * sample / (time.monotonic() - started_at)) + 1


def gone_at(engine: LiveEngine, state: str) -> None:
    """A client that leaves at a state of its request."""
    body = json.dumps(LONG | {"ignore_eos": True, "stream": state != "whole"}).encode()
    with socket.create_connection(("127.0.0.1", engine.port), timeout=60) as connection:
        connection.sendall(HEAD % len(body) + (body[:10] if state == "body" else body))
        if state == "tokens":
            while connection.recv(4096).count(EVENT) < 1:
                pass
        elif state != "body":
            wait_until(lambda: engine.load["running"] + engine.load["waiting"] > 0, pause=0.01)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")  # close with a reset


@pytest.mark.parametrize("state", ["body", "queued", "tokens", "whole"])
def test_a_client_that_leaves_frees_its_blocks(module_engine: LiveEngine, state: str) -> None:
    for _ in range(3):
        gone_at(module_engine, state)
    module_engine.wait_idle()


def test_a_killed_core_ends_each_stream_with_one_error_and_is_replaced(module_engine: LiveEngine) -> None:
    """vllm #39863: a dead core with a healthy front."""
    engine = module_engine
    core, api = engine.child("core.main"), engine.child("api.main")
    live: list[int | None] = []
    watching = threading.Event()

    def watch() -> None:
        while not watching.wait(0.05):
            live.append(engine.probe("/live"))

    watcher = threading.Thread(target=watch)
    watcher.start()
    with ThreadPoolExecutor(8) as pool:
        running = streams(engine, pool, 8)
        os.kill(core, signal.SIGKILL)
        results = [r.result(timeout=60) for r in running]
    for result in results:
        assert result.status == 200
        assert len(result.errors) == 1
        assert result.errors[0]["type"] == "server_error"
        assert result.events[-1] == b"[DONE]"
        assert result.events[-2].startswith(b'{"error"')
    assert engine.probe("/ready") == 503
    status, headers, _ = engine.post("/v1/chat/completions", json.dumps(LONG).encode())
    assert status == 503
    assert int(headers["Retry-After"]) <= 60
    engine.wait_ready()
    watching.set()
    watcher.join()
    assert set(live) == {200}, "restarting the core is launch's work"
    assert engine.child("core.main") != core
    assert engine.child("api.main") == api
    assert stream(engine, max_tokens=3).errors == []
    engine.wait_idle()
    assert b'kvik_core_restarts_total{model_name="smollm2"} 1.0' in engine.get("/metrics")[1]


def stall_seconds(engine: LiveEngine) -> float:
    """After how long without a step the newest core counts as hung, by its own log."""
    told = [json.loads(line) for line in engine.log.read_text().splitlines() if '"stall_seconds"' in line]
    return float(told[-1]["stall_seconds"])


def test_a_stopped_core_fails_liveness_and_comes_back(module_engine: LiveEngine) -> None:
    """A core that hangs is not dead: the heartbeat says so within the limit it began with, which on a slow machine is
    twice the longest step of the warm-up (gonka PR #1421 took minutes)."""
    engine = module_engine
    core = engine.child("core.main")
    limit = stall_seconds(engine)
    os.kill(core, signal.SIGSTOP)
    try:
        started_at = time.monotonic()
        wait_until(lambda: engine.probe("/live") == 503, limit + 30, pause=0.2)
        assert time.monotonic() - started_at > limit / 2
    finally:
        os.kill(core, signal.SIGCONT)
    wait_until(lambda: engine.probe("/live") == 200)
    assert stream(engine, max_tokens=3).errors == []


def test_sigterm_drains_and_exits_0(tmp_path: Path) -> None:
    """docs/contract.md, section 6, with a running stream, a late request and a later one.

    vllm RFC #24885, PR #43208: a drain of no time at all by default; litellm PR #29439: of a fixed time.
    """
    with started(LiveEngine(tmp_path, demo_model(), {"drain-timeout": "120s"})) as engine:
        core, api = engine.child("core.main"), engine.child("api.main")
        with ThreadPoolExecutor(4) as pool:
            (running,) = streams(engine, pool, 1, max_tokens=tokens_in(engine, seconds=15))
            assert engine.process is not None
            engine.process.send_signal(signal.SIGTERM)
            wait_until(lambda: engine.load["state"] == "draining")
            assert engine.probe("/ready") == 200
            late = stream(engine, max_tokens=3)
            assert late.status == 200
            assert b"Connection: close" in late.head
            time.sleep(LINGER_SECONDS + 1)
            assert stream(engine, max_tokens=1).status == 200, "while it runs, it refuses nothing"
            assert running.result(timeout=120).errors == []
        assert engine.end() == 0
        assert not alive(core)
        assert not alive(api)
        assert list(engine.run_base.glob("[!.]*")) == []


def test_a_second_sigterm_ends_streams_with_an_error(tmp_path: Path) -> None:
    with started(LiveEngine(tmp_path, demo_model())) as engine, ThreadPoolExecutor(2) as pool:
        (running,) = streams(engine, pool, 1)
        assert engine.process is not None
        engine.process.send_signal(signal.SIGTERM)
        # Two signals that come together are one.
        wait_until(lambda: engine.load["state"] == "draining")
        engine.process.send_signal(signal.SIGTERM)
        result = running.result(timeout=120)
        assert len(result.errors) == 1
        assert result.events[-1] == b"[DONE]"
        assert engine.end() == 0


def test_kvik_drain_makes_it_unready_and_a_killed_api_leaves_no_core(tmp_path: Path) -> None:
    with started(LiveEngine(tmp_path, demo_model())) as engine:
        core = engine.child("core.main")
        command = [sys.executable, "-m", "kvik_engine", "drain", "--run-dir", str(engine.run_base)]
        said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        assert said == "draining, 0 requests running\n"
        assert engine.probe("/ready") == 503
        assert stream(engine, max_tokens=1).status == 200, "still accepted for 5 s"
        os.kill(engine.child("api.main"), signal.SIGKILL)
        assert engine.end() != 0
        wait_until(lambda: not alive(core))
