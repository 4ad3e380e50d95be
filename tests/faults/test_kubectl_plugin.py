"""`kubectl kvik` on a real API server, with the operator that carries out what it writes."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.kubectl import condition
from tests.support.operator_rig import Rig, eventually

pytestmark = pytest.mark.timeout(600)

NEWER = "--engine-image-cpu=kvik.test/engine:0.2.0-cpu"


def command(rig: Rig, *arguments: str) -> list[str]:
    target = (f"--kubeconfig={rig.plane.kubeconfig}", f"--namespace={rig.namespace}")
    return [sys.executable, "-m", "kvik_kubectl", *arguments, *target]


def kvik(rig: Rig, *arguments: str) -> list[str]:
    """The lines that it prints; raises with its error if it fails."""
    done = subprocess.run(command(rig, *arguments), capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def failure(rig: Rig, *arguments: str) -> str:
    """The one line with which it fails."""
    done = subprocess.run(command(rig, *arguments), capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    return line


def by_kubectl(rig: Rig, *arguments: str) -> list[str]:
    """As `kubectl kvik`: kubectl finds the plugin on PATH, and hands it what follows its name."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [str(rig.plane.kubectl), "kvik", *command(rig, *arguments)[3:]],
        capture_output=True, text=True, timeout=120, check=False, env={**os.environ, "PATH": path},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@contextlib.contextmanager
def running(rig: Rig, *arguments: str) -> Iterator["subprocess.Popen[str]"]:
    with subprocess.Popen(command(rig, *arguments), stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def images(rig: Rig) -> set[str]:
    return {pod["spec"]["containers"][0]["image"] for pod in rig.pods()}


def test_upgrade_history_and_rollback(operated: Rig) -> None:
    rig = operated
    rig.operator()
    rig.create(replicas=2, template={"serviceAccountAnnotations": {"cloud/role": "r"}})
    rig.wait_ready()
    assert "nothing newer than its engine 0.1.0 is known" in failure(rig, "upgrade", "chat")
    assert "Invalid value" in failure(rig, "upgrade", "chat", "--to=newest")
    (first,) = rig.started
    assert first[0].terminate() == 0
    rig.operator(NEWER)
    eventually(
        "the newer engine to be told",
        lambda: ((rig.pool() or {}).get("status") or {}).get("engine", {}).get("available") == "0.2.0",
        30,
        rig.explain,
    )

    assert kvik(rig, "upgrade", "chat", "--dry-run") == ["chat: engine 0.1.0 -> 0.2.0 (dry run)"]
    assert len(rig.revisions()) == 1
    said = kvik(rig, "upgrade", "chat", "--wait", "--timeout=100s")
    assert (said[0], said[-1]) == ("chat: engine 0.1.0 -> 0.2.0", "all pods are of the current specification")
    eventually("old pods to be gone", lambda: images(rig) == {"kvik.test/engine:0.2.0-cpu"}, 30, rig.explain)
    rig.patch({"replicas": 3})

    newest, oldest = json.loads("\n".join(kvik(rig, "history", "chat", "-o", "json")))
    assert (newest["engine"]["version"], newest["state"], oldest["engine"]["version"]) == ("0.2.0", "in use", "0.1.0")
    assert newest["changes"] == [{"field": "engine.version", "from": None, "to": "0.2.0"}]

    said = kvik(rig, "rollback", "chat", "--wait", "--timeout=100s")
    assert said[:2] == ["chat: revision 1, engine 0.1.0", "  engine.version: 0.2.0 -> none"]
    eventually("newer pods to be gone", lambda: images(rig) == {"kvik.test/engine:0.1.0-cpu"}, 30, rig.explain)
    spec = (rig.pool() or {})["spec"]
    assert (spec["replicas"], spec["template"]) == (3, {"serviceAccountAnnotations": {"cloud/role": "r"}})
    lines = by_kubectl(rig, "history", "chat")
    assert [line.split()[0] for line in lines] == ["REVISION", "3", "2"]
    assert "in use" in lines[1]


def test_drain_waits_for_the_disruption_budget_and_then_for_the_pod(operated: Rig) -> None:
    rig = operated
    rig.operator()
    rig.create(replicas=2)
    rig.wait_ready()
    eventually("two ready pods", lambda: ready(rig) == 2, 30, rig.explain)
    first, second = (pod["metadata"]["name"] for pod in rig.pods())
    rig.kubelet.starts = lambda pod: False
    assert kvik(rig, "drain", first)[-1].startswith(f"pod {first} is gone after ")
    assert "may not be evicted yet: The disruption budget chat needs 1 healthy pods" in failing_drain(rig, second)
    with running(rig, "drain", second) as draining:
        assert draining.stdout is not None
        assert draining.stdout.readline().startswith("warning: no other pod of pool chat is ready")
        assert draining.stdout.readline().startswith("waiting: The disruption budget chat needs 1 healthy pods")
        rig.kubelet.starts = lambda pod: True  # the pod in the first one's place
        said = [line for line in draining.stdout if not line.startswith("waiting: ")]
        assert "ends once its running answers have" in said[0]
        assert said[1].startswith(f"pod {second} is gone after ")
        assert draining.wait(90) == 0
    eventually("two ready pods again", lambda: ready(rig) == 2, 60, rig.explain)
    assert first not in failure(rig, "drain", "nobody")


def failing_drain(rig: Rig, pod: str) -> str:
    done = subprocess.run(
        command(rig, "drain", pod, "--timeout=0"), capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    return done.stderr


def ready(rig: Rig) -> int:
    found = [condition(pod, "Ready") or {} for pod in rig.pods()]
    return sum(one.get("status") == "True" for one in found)
