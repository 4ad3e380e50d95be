"""The operator before its CRD is installed, and after it was taken away: it waits, and is not killed for that."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.control_plane import RunningControlPlane, control_plane
from tests.support.operator_process import OperatorProcess
from tests.support.operator_rig import eventually, holds
from tests.support.running_operator import RELEASE, helm, install, running_operator

pytestmark = pytest.mark.timeout(600)

FEED_DOWN_AFTER = 5
QUICK = ("--relist-period=1", "--deaf-after=3", f"--feed-down-after={FEED_DOWN_AFTER}")
LEFT_OVER = """
apiVersion: v1
kind: ServiceAccount
metadata:
  name: chat
  namespace: default
  labels: {kvik.dev/pool: chat}
"""


@pytest.fixture
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningControlPlane]:
    """Without the chart kvik-crds."""
    with control_plane(tmp_path_factory.mktemp("plane-without-crd")) as running:
        helm(running, "upgrade", "--install", "--create-namespace", RELEASE, "charts/kvik")
        yield running


def answers(operator: OperatorProcess, path: str) -> int:
    return operator.probe(path)[0]


def waits(operator: OperatorProcess) -> int:
    """How often it has said that it waits for the CRD."""
    return sum("waiting for the CRD" in line["message"] for line in operator.log_lines())


def test_an_operator_without_its_crd_waits_and_lives(plane: RunningControlPlane, tmp_path: Path) -> None:
    plane.run_kubectl("apply", "-f", "-", stdin=LEFT_OVER)
    with running_operator(plane, tmp_path, *QUICK) as operator:
        eventually("the operator to wait", lambda: waits(operator) > 0, 30, operator.log_tail)
        holds("it lives", lambda: answers(operator, "/live") == 200, 2 * FEED_DOWN_AFTER)
        assert operator.probe("/ready") == (503, "the API inferencepools.kvik.dev is not served yet\n")

        install(plane)
        eventually("it to be ready", lambda: answers(operator, "/ready") == 200, 60, operator.log_tail)
        eventually("it to live", lambda: answers(operator, "/live") == 200, 60, operator.log_tail)

        before = waits(operator)
        plane.run_kubectl("delete", "crd", "inferencepools.kvik.dev")
        eventually("it to wait again", lambda: waits(operator) > before, 60, operator.log_tail)
        holds("it lives", lambda: answers(operator, "/live") == 200, 2 * FEED_DOWN_AFTER)
        assert answers(operator, "/ready") == 503
