"""kubectl as tests use it: typed answers, one error type, and waiting with a reason."""

import json
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

Object = Mapping[str, Any]
T = TypeVar("T")

SLOW_MACHINE = 3
"""How many times as long as said a wait may take: what is said is what it takes at most where nobody else computes."""


class KubectlError(RuntimeError):
    """kubectl failed; the text is what it printed on standard error."""


@dataclass(frozen=True, slots=True)
class Kubectl:
    """Runs `program` against the cluster of `kubeconfig`, in `namespace` unless a call names another."""

    program: Path
    kubeconfig: Path
    namespace: str

    def run(self, *arguments: str, stdin: str | None = None, timeout: float = 120) -> str:
        """What kubectl prints. Raises KubectlError."""
        done = subprocess.run(
            self.command(*arguments), input=stdin, capture_output=True, text=True, timeout=timeout, check=False
        )
        if done.returncode != 0:
            raise KubectlError(f"kubectl {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    def command(self, *arguments: str) -> list[str]:
        return [str(self.program), f"--kubeconfig={self.kubeconfig}", f"--namespace={self.namespace}", *arguments]

    def get(self, kind: str, name: str) -> Object | None:
        """One object, or None if there is none of that name."""
        text = self.run("get", kind, name, "--output=json", "--ignore-not-found")
        return json.loads(text) if text.strip() else None

    def list(self, kinds: str, selector: str = "", *, all_namespaces: bool = False) -> Sequence[Object]:
        scope = ["--all-namespaces"] if all_namespaces else []
        items: list[Object] = json.loads(
            self.run("get", kinds, f"--selector={selector}", "--output=json", "--ignore-not-found", *scope) or "{}"
        ).get("items", [])
        return items

    def apply(self, manifest: str) -> str:
        return self.run("apply", "--filename=-", stdin=manifest)

    def port_forward(self, target: str, port: int) -> "PortForward":
        return PortForward(self.command("port-forward", "--address=127.0.0.1", target, f":{port}"))


class PortForward(AbstractContextManager[str]):
    """A `kubectl port-forward` on a free loopback port; entering gives `http://127.0.0.1:PORT`."""

    def __init__(self, command: list[str]) -> None:
        self._command = command

    def __enter__(self) -> str:
        self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()  # Forwarding from 127.0.0.1:40123 -> 8000
        if not line.startswith("Forwarding from"):
            self.__exit__(None, None, None)
            raise KubectlError(line.strip() or "port-forward ended without a word")
        return f"http://{line.split()[2]}"

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        self._process.wait(30)
        assert self._process.stdout is not None
        self._process.stdout.close()


def wait_for(
    what: str,
    probe: Callable[[], T | None],
    seconds: float,
    detail: Callable[[], str] = lambda: "",
    *,
    every: float = 0.5,
    patience: float = SLOW_MACHINE,
) -> T:
    """What `probe` returns once that is true; asks every `every` seconds. A `patience` of 1 is for what is promised.

    Raises:
        TimeoutError: with `what`, and `detail()` for whoever reads the log.
    """
    deadline = time.monotonic() + patience * seconds
    while True:
        found = probe()
        if found:
            return found
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {patience * seconds:.0f} s for {what}\n{detail()}")
        time.sleep(every)


def condition(thing: Object | None, kind: str) -> Mapping[str, str] | None:
    """A condition of an object's status, or None."""
    conditions = (thing or {}).get("status", {}).get("conditions", [])
    return next((one for one in conditions if one["type"] == kind), None)
