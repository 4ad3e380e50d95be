"""One control plane for all tests of the operator under faults, and a rig in a namespace of its own for each test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.control_plane import RunningControlPlane, control_plane
from tests.support.operator_rig import Rig, rig
from tests.support.running_operator import install

FOLDER = Path(__file__).parent
RESET_BEFORE_TLS = (
    r"ignore:Exception ignored in. <ssl\.SSLSocket [^>]*laddr=\([^)]*\)>:pytest.PytestUnraisableExceptionWarning"
)
"""Python 3.11 leaves a socket open whose server, killed here on purpose, resets it between connect and handshake
(`SSLSocket._create`). It has no peer any more, which one that we forgot to close would have."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """In any test, since the collector may find the socket later than in the one that killed the server."""
    for item in items:
        if FOLDER in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings(RESET_BEFORE_TLS))


@pytest.fixture(scope="session")
def shared_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningControlPlane]:
    with control_plane(tmp_path_factory.mktemp("shared-plane")) as plane:
        install(plane)
        yield plane


@pytest.fixture
def operated(shared_plane: RunningControlPlane, tmp_path: Path) -> Iterator[Rig]:
    with rig(shared_plane, tmp_path) as running:
        yield running
