"""The stub engine as a child of the test, on free ports of 127.0.0.1."""

import subprocess
import sys
from pathlib import Path

from tests.support.live_engine import MODEL, LiveEngine

ROOT = Path(__file__).resolve().parents[2]


class StubProcess(LiveEngine):
    """The stub, started and asked as the real engine is."""

    def start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        settings = {"host": "127.0.0.1", "port": str(self.port), "metrics-port": str(self.metrics_port)}
        flags = [f"--{name}={value}" for name, value in (settings | {"model-name": MODEL} | self.options).items()]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.stub_engine", "serve", "/models/x", *flags], cwd=ROOT, stderr=log
            )
