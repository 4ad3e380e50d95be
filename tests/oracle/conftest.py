"""The embedded model in fp32, loaded once for all tests of a process."""

from __future__ import annotations

import pytest

from kvik_engine.config import EngineConfig
from kvik_engine.runner.load import load_runner
from kvik_engine.runner.runner import ModelRunner
from tests.support.demo_model import demo_model
from tests.support.real_core import engine_config


@pytest.fixture(scope="session")
def config() -> EngineConfig:
    return engine_config(demo_model(), dtype="fp32")


@pytest.fixture(scope="session")
def runner(config: EngineConfig) -> ModelRunner:
    return load_runner(config, print)
