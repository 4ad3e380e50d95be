"""One control plane for all tests of the operator under faults, and a rig in a namespace of its own for each test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.control_plane import RunningControlPlane, control_plane
from tests.support.operator_rig import Rig, rig
from tests.support.running_operator import install


@pytest.fixture(scope="session")
def shared_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningControlPlane]:
    with control_plane(tmp_path_factory.mktemp("shared-plane")) as plane:
        install(plane)
        yield plane


@pytest.fixture
def operated(shared_plane: RunningControlPlane, tmp_path: Path) -> Iterator[Rig]:
    with rig(shared_plane, tmp_path) as running:
        yield running
