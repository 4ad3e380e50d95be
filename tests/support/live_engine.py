"""A real engine: `kvik serve` as a child of the test, with the embedded model, on free ports of 127.0.0.1."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from openai import OpenAI

from tests.cluster.free_ports import free_ports
from tests.support.waiting import wait_until

MODEL = "smollm2"
START_SECONDS = 180.0


@dataclass
class LiveEngine:
    """One engine. Start it with `started`."""

    folder: Path
    model: Path | str
    options: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.port, self.metrics_port = free_ports("127.0.0.1", 2)
        self.log = self.folder / "log"
        self.process: subprocess.Popen[bytes] | None = None
        self._client: OpenAI | None = None

    def start(self) -> None:
        """Returns at once."""
        self.folder.mkdir(parents=True, exist_ok=True)
        settings = {
            "host": "127.0.0.1",
            "port": str(self.port),
            "metrics-port": str(self.metrics_port),
            "model-name": MODEL,
            "device": "cpu",
            "dtype": "fp32",
            "kv-cache-size": "128Mi",
            "run-dir": str(self.run_base),
            "cache-dir": str(self.folder / "cache"),
        } | self.options
        command = [sys.executable, "-m", "kvik_engine", "serve", str(self.model)]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*command, *(f"--{name}={value}" for name, value in settings.items())],
                env={**os.environ, **self.environment},
                stderr=log,
            )

    def wait_ready(self) -> None:
        def ready() -> bool:
            assert self.process is not None
            assert self.process.poll() is None, self.log.read_text()[-3000:]
            return self.probe("/ready") == 200

        wait_until(ready, START_SECONDS, pause=0.2)

    @property
    def run_base(self) -> Path:
        return self.folder / "run"

    @property
    def run_dir(self) -> Path:
        """Of this start."""
        (found,) = self.run_base.glob("[!.]*")
        return found

    @property
    def openai(self) -> OpenAI:
        """The official client, unmodified, without retries. One for all calls: it keeps connections until `stop`."""
        if self._client is None:
            url = f"http://127.0.0.1:{self.port}/v1"
            self._client = OpenAI(base_url=url, api_key="none", max_retries=0, timeout=300)
        return self._client

    def probe(self, path: str) -> int | None:
        """Status of a GET on the metrics port; None when nobody answers."""
        return self.get(path)[0]

    def get(self, path: str, port: int | None = None, key: str | None = None) -> tuple[int | None, bytes]:
        """Of the metrics port, unless another is given; with an API key if there is one."""
        connection = http.client.HTTPConnection("127.0.0.1", port or self.metrics_port, timeout=30)
        try:
            connection.request("GET", path, headers={} if key is None else {"Authorization": f"Bearer {key}"})
            response = connection.getresponse()
            return response.status, response.read()
        except (OSError, http.client.HTTPException):
            return None, b""
        finally:
            connection.close()

    def post(self, path: str, body: bytes) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body of a POST on the API port."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        try:
            connection.request("POST", path, body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            return response.status, dict(response.getheaders()), response.read()
        finally:
            connection.close()

    @property
    def load(self) -> dict[str, Any]:
        loaded: dict[str, Any] = json.loads(self.get("/load")[1])
        return loaded

    def child(self, module: str) -> int:
        """The pid of the child that runs `module`."""
        assert self.process is not None
        (pid,) = [p for p in children(self.process.pid) if module.encode() in command_of(p)]
        return pid

    def wait_idle(self) -> None:
        """No request is left, and no block is owned."""
        wait_until(lambda: self.load["running"] == 0 == self.load["waiting"])
        wait_until(lambda: self.load["kv_blocks_used"] == 0)

    def end(self, seconds: float = 60) -> int:
        """The exit code, once it ends by itself."""
        assert self.process is not None
        return self.process.wait(seconds)

    def stop(self) -> None:
        """Whatever it does, it is gone afterwards, and its children with it."""
        if self._client is not None:
            self._client.close()
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


@contextlib.contextmanager
def started(engine: LiveEngine) -> Iterator[LiveEngine]:
    """Start, wait until ready, stop."""
    engine.start()
    try:
        engine.wait_ready()
        yield engine
    finally:
        engine.stop()


def children(pid: int) -> list[int]:
    """Direct children of a process."""
    return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def command_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def alive(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def memory_maps(pid: int) -> str:
    """The files that a process has mapped."""
    return Path(f"/proc/{pid}/maps").read_text()
