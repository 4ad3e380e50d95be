"""How the operator's process ends."""

import gc

import pytest

from kvik_operator import __main__, app, config
from kvik_operator.telemetry import logging


def test_the_interpreters_last_collection_has_nothing_to_walk(monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator of many pools took seconds to end after it had stopped."""

    class Settings:
        log_level = "INFO"

    monkeypatch.setattr(config, "from_process", Settings)
    monkeypatch.setattr(logging, "configure", lambda level: None)
    monkeypatch.setattr(app, "run", lambda settings: 7)
    try:
        assert __main__.main() == 7
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()
