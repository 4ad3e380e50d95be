"""One real engine for all tests that leave it as they found it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.demo_model import demo_model
from tests.support.live_engine import LiveEngine, started


@pytest.fixture(scope="session")
def shared_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveEngine]:
    with started(LiveEngine(tmp_path_factory.mktemp("engine"), demo_model(), {"slo-ttft": "30s"})) as engine:
        yield engine


@pytest.fixture
def engine(shared_engine: LiveEngine) -> Iterator[LiveEngine]:
    """The shared engine; after each test nothing runs and no block is owned."""
    yield shared_engine
    shared_engine.wait_idle()
