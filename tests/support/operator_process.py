"""The operator as a child process, as a pod would run it, and what it says about itself."""

import http.client
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from tests.cluster.free_ports import free_ports
from tests.support.kubectl import SLOW_MACHINE

ROOT = Path(__file__).resolve().parents[2]
POD_GRACE = 15.0
"""Seconds that the chart gives an operator to end, before the kubelet kills it."""
ENGINE_IMAGE = "kvik.test/engine:0.1.0"


class OperatorProcess:
    """A context manager: starts on entering, and is killed on leaving if it still runs. Starts from the main thread."""

    def __init__(self, kubeconfig: Path, log: Path, *flags: str, lease_namespace: str, lease_name: str) -> None:
        (self._port,) = free_ports("127.0.0.1", 1)
        self._log = log
        self._command = [
            *("setpriv", "--pdeathsig", "KILL", sys.executable, "-X", "faulthandler", "-m", "kvik_operator"),
            f"--engine-image-gpu={ENGINE_IMAGE}",
            f"--engine-image-cpu={ENGINE_IMAGE}-cpu",
            f"--lease-namespace={lease_namespace}",
            f"--lease-name={lease_name}",
            "--probe-host=127.0.0.1",
            f"--probe-port={self._port}",
            *flags,
        ]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("KVIK_")}
        self._environment = environment | {"KUBECONFIG": str(kubeconfig)}
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.exit_status() is None:
            self.resume()
            self.terminate()

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, cwd=ROOT, env=self._environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    @property
    def process(self) -> "subprocess.Popen[bytes]":
        assert self._process is not None, "not started"
        return self._process

    def exit_status(self) -> int | None:
        """None while it runs, or before it was started."""
        return None if self._process is None else self._process.poll()

    def terminate(self) -> int:
        """SIGTERM, as the kubelet does it. Returns the exit status.

        Raises TimeoutError with the stacks of all threads if it does not end in time.
        """
        patience = SLOW_MACHINE * POD_GRACE
        self.process.terminate()
        try:
            return self.process.wait(patience)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGABRT)  # faulthandler writes into the log
            self.process.wait(30)
            raise TimeoutError(f"did not end within {patience:.0f} s\n{self.log_tail(150)}") from None

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(30)

    def freeze(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def probe(self, path: str) -> tuple[int, str]:
        """Status and text of `/live` or `/ready`; (0, why) when it does not answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)
        try:
            connection.request("GET", path)
            with connection.getresponse() as answer:
                return answer.status, answer.read().decode()
        except (OSError, http.client.HTTPException) as error:
            return 0, str(error)
        finally:
            connection.close()

    def metric(self, series: str) -> float | None:
        """The value of a series, written as on the page; None: absent."""
        for line in self.probe("/metrics")[1].splitlines():
            name, _, value = line.rpartition(" ")
            if name == series:
                return float(value)
        return None

    def cpu_seconds(self) -> float:
        """Processor time used so far."""
        return self.metric("process_cpu_seconds_total") or 0.0

    def log_lines(self) -> Sequence[dict[str, Any]]:
        return [json.loads(line) for line in self._log.read_text().splitlines() if line.startswith("{")]

    def log_tail(self, lines: int = 20) -> str:
        return "\n".join(self._log.read_text().splitlines()[-lines:])
