"""What the demo and the e2e tests take for an answer from inside the cluster."""

from collections.abc import Mapping
from typing import Any, cast

import pytest

from tests.support.in_cluster_traffic import run_python
from tests.support.kubectl import Kubectl, KubectlError


class Cluster:
    """A cluster in which a pod ends as soon as it is made."""

    def __init__(self, phase: str, log: str) -> None:
        self._phase, self._log = phase, log
        self.done: list[str] = []

    def run(self, *arguments: str) -> str:
        self.done.append(" ".join(arguments))
        return self._log if arguments[0] == "logs" else ""

    def apply(self, manifest: str) -> str:
        self.done.append("apply")
        return ""

    def get(self, kind: str, name: str) -> Mapping[str, Any]:
        return {"status": {"phase": self._phase}}


def test_what_a_program_prints_is_its_answer() -> None:
    assert run_python(cast(Kubectl, Cluster("Succeeded", "Paris")), "image", "question", "print") == "Paris"


def test_a_program_that_fails_is_no_answer() -> None:
    """The demo once printed `A: Traceback ...` and said Done."""
    cluster = Cluster("Failed", "Traceback ...\nHTTP Error 503")
    with pytest.raises(KubectlError, match="HTTP Error 503"):
        run_python(cast(Kubectl, cluster), "image", "question", "print")
    assert cluster.done[-1].startswith("delete pod question")


def test_a_pod_that_a_killed_run_left_is_taken_away_first() -> None:
    """Its manifest is the same, so `apply` would change nothing and its old log be taken for the answer."""
    cluster = Cluster("Succeeded", "Paris")
    run_python(cast(Kubectl, cluster), "image", "question", "print")
    assert cluster.done[:2] == ["delete pod question --ignore-not-found --wait=true", "apply"]
