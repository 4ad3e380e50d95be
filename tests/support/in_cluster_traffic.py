"""Runs tests/e2e/traffic.py in a pod beside the pool, and brings back what it counted."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.kubectl import Kubectl, KubectlError, wait_for

SCRIPT = Path(__file__).resolve().parents[1] / "e2e" / "traffic.py"

# Accepted in a namespace that enforces `restricted`.
POD = """
apiVersion: v1
kind: Pod
metadata: {{name: {name}, labels: {{app: traffic}}}}
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 1
  automountServiceAccountToken: false
  securityContext: {{runAsNonRoot: true, runAsUser: 65532, runAsGroup: 65532, seccompProfile: {{type: RuntimeDefault}}}}
  containers:
  - name: traffic
    image: {image}
    imagePullPolicy: IfNotPresent
    command: {command}
    resources: {{requests: {{cpu: 200m}}}} # else it gets what others leave of a busy machine, and sends little
    securityContext: {{allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {{drop: [ALL]}}}}
    volumeMounts: [{{name: script, mountPath: /traffic}}, {{name: tmp, mountPath: /tmp}}]
  volumes: [{{name: script, configMap: {{name: traffic, optional: true}}}}, {{name: tmp, emptyDir: {{}}}}]
"""


@dataclass(frozen=True, slots=True)
class Traffic:
    """What the clients saw, once the block has ended."""

    succeeded: int
    failures: list[str]
    slowest_first_token: float
    seconds: float


class Running:
    """Traffic that still runs; `result` is set when the block ends."""

    result: Traffic

    def __init__(self, kubectl: Kubectl, pod: str) -> None:
        self._kubectl = kubectl
        self._pod = pod

    def last_answers(self) -> None:
        """From now on no client begins another answer."""
        self._kubectl.run("exec", self._pod, "--", "touch", "/tmp/stop")


@contextmanager
def traffic(
    kubectl: Kubectl, image: str, name: str, url: str, model: str, *, clients: int, words: int, max_tokens: int
) -> Iterator[Running]:
    """Clients that stream chats one after the other for as long as the block runs."""
    running = Running(kubectl, name)
    manifest = kubectl.run(
        "create", "configmap", "traffic", f"--from-file={SCRIPT}", "--dry-run=client", "--output=yaml"
    )
    kubectl.apply(manifest)
    command = ["python3", "-B", "/traffic/traffic.py", url, model, str(clients), str(words), str(max_tokens)]
    _start(kubectl, name, image, command)
    try:
        wait_for(f"pod {name} to run", lambda: _phase(kubectl, name) in {"Running", "Succeeded", "Failed"}, 60)
        yield running
        if _phase(kubectl, name) == "Running":
            running.last_answers()
        wait_for(f"pod {name} to finish", lambda: _phase(kubectl, name) in {"Succeeded", "Failed"}, 300)
        log = kubectl.run("logs", name)
        lines = log.strip().splitlines()
        if not lines or not lines[-1].startswith("{"):
            raise KubectlError(f"traffic did not end well:\n{log[-2000:]}")
        running.result = Traffic(**json.loads(lines[-1]))
    finally:
        kubectl.run("delete", "pod", name, "--ignore-not-found", "--wait=false")


def run_python(kubectl: Kubectl, image: str, name: str, program: str, seconds: float = 120) -> str:
    """What a Python program prints that runs once in a pod of the cluster. Raises KubectlError if it fails."""
    _start(kubectl, name, image, ["python3", "-B", "-c", program])
    try:
        wait_for(f"pod {name} to finish", lambda: _phase(kubectl, name) in {"Succeeded", "Failed"}, seconds)
        log = kubectl.run("logs", name)
        if _phase(kubectl, name) != "Succeeded":
            raise KubectlError(f"the program in pod {name} failed:\n{log[-2000:]}")
        return log
    finally:
        kubectl.run("delete", "pod", name, "--ignore-not-found", "--wait=false")


def _start(kubectl: Kubectl, name: str, image: str, command: list[str]) -> None:
    """A new pod, also where a run that was killed has left one of its name: that one's log is an old answer."""
    kubectl.run("delete", "pod", name, "--ignore-not-found", "--wait=true")
    kubectl.apply(POD.format(name=name, image=image, command=json.dumps(command)))


def _phase(kubectl: Kubectl, name: str) -> str | None:
    pod = kubectl.get("pod", name)
    return None if pod is None else pod["status"].get("phase")
