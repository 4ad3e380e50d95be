"""A live API per test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.live_api import LiveApi, live_api


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[LiveApi]:
    async with live_api(tmp_path) as made:
        yield made
