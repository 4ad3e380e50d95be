"""The operator as a process of this machine, with exactly the rights that the chart gives to it.

    with running_operator(plane, folder) as operator:
        ...

The chart is installed first (its own pod cannot run on a control plane without kubelet); the process authenticates
with a token of the chart's ServiceAccount, so a missing verb shows as it would in a cluster.
"""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

from tests.support.control_plane import RunningControlPlane

ROOT = Path(__file__).resolve().parents[2]
NAMESPACE = "kvik-system"
RELEASE = "kvik"


@dataclass(frozen=True, slots=True)
class RunningOperator:
    process: "subprocess.Popen[bytes]"
    log: Path
    url: str
    """Of /live, /ready and /metrics."""

    def log_text(self) -> str:
        return self.log.read_text(errors="replace")


def helm(plane: RunningControlPlane, *arguments: str) -> str:
    """What helm prints. Raises RuntimeError with its error text."""
    command = [str(plane.helm), "--kubeconfig", str(plane.kubeconfig), "--namespace", NAMESPACE, *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"helm {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


def install(plane: RunningControlPlane, *values: str) -> None:
    """Both charts, as a user installs them, without waiting for the operator's pod."""
    helm(plane, "upgrade", "--install", "--create-namespace", "kvik-crds", "charts/kvik-crds")
    helm(plane, "upgrade", "--install", "--create-namespace", RELEASE, "charts/kvik", *values)


@contextmanager
def running_operator(plane: RunningControlPlane, folder: Path, flags: Sequence[str] = ()) -> Iterator[RunningOperator]:
    """Starts the operator with the rights of the chart's ServiceAccount; `install` must have been called.

    `folder` is the caller's; ending the context ends the process.
    """
    port = _free_port()
    command = [
        sys.executable,
        "-m",
        "kvik_operator",
        "--engine-image-gpu=kvik.test/engine:1",
        "--engine-image-cpu=kvik.test/engine:1-cpu",
        f"--lease-namespace={NAMESPACE}",
        f"--lease-name={RELEASE}-operator",
        "--probe-host=127.0.0.1",
        f"--probe-port={port}",
        *flags,
    ]
    environment = {**os.environ, "KUBECONFIG": str(_kubeconfig(plane, folder))}
    log = folder / "operator.log"
    with log.open("ab") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=environment, cwd=ROOT)
    try:
        yield RunningOperator(process, log, f"http://127.0.0.1:{port}")
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)


def _kubeconfig(plane: RunningControlPlane, folder: Path) -> Path:
    token = plane.run_kubectl("create", "token", f"{RELEASE}-operator", "-n", NAMESPACE, "--duration=2h").strip()
    config = yaml.safe_load(plane.kubeconfig.read_text())
    for user in config["users"]:
        user["user"] = {"token": token}
    path = folder / "operator.conf"
    path.write_text(yaml.safe_dump(config))
    return path


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
