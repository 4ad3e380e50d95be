"""A second node of the local cluster for as long as a block runs, and who is on which node."""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.cluster import second_node
from tests.cluster.node import FIRST
from tests.cluster.paths import local_cluster
from tests.support.kubectl import Kubectl

ROOT = Path(__file__).resolve().parents[2]
STAYS, GOES = FIRST.name, second_node.NAME


@contextmanager
def two_nodes() -> Iterator[None]:
    """Afterwards the cluster has one, whether the second was drained, lost or is as it was."""
    _have(2)
    try:
        yield
    finally:
        _have(1)


@contextmanager
def only_on_second(kubectl: Kubectl) -> Iterator[None]:
    """New pods go to the second node, as long as the block runs."""
    kubectl.run("cordon", STAYS)
    try:
        yield
    finally:
        kubectl.run("uncordon", STAYS)


def lose_second() -> None:
    second_node.lose(local_cluster())


def on_node(kubectl: Kubectl, node: str, selector: str) -> Sequence[str]:
    """The pods there, by name."""
    pods = kubectl.list("pods", selector)
    return [pod["metadata"]["name"] for pod in pods if pod["spec"].get("nodeName") == node]


def _have(nodes: int) -> None:
    command = [sys.executable, "-m", "tests.cluster", "up", "--nodes", str(nodes)]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
