"""A live API per test, and connections to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.live_api import LiveApi, live_api
from tests.support.raw_requests import Connect


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[LiveApi]:
    async with live_api(tmp_path) as made:
        yield made


@pytest.fixture
async def connect(api: LiveApi) -> AsyncIterator[Connect]:
    writers: list[asyncio.StreamWriter] = []

    async def make() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", api.port)
        writers.append(writer)
        return reader, writer

    yield make
    for writer in writers:
        writer.close()
