"""Which of signal and `kvik drain` ends streams: only a second signal, or launch giving up."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kvik_engine.api.drain import LINGER_SECONDS
from kvik_engine.api.main import ApiProcess
from tests.support.byte_tokenizer import byte_tokenizer
from tests.support.live_api import engine_config


@pytest.fixture
async def process(tmp_path: Path) -> ApiProcess:
    byte_tokenizer().save(str(tmp_path / "tokenizer.json"))
    made = ApiProcess(engine_config(tmp_path, tokenizer_path=str(tmp_path)))
    made._stop = asyncio.get_running_loop().create_future()
    return made


def state(process: ApiProcess) -> tuple[float | None, bool, bool]:
    """(linger time once told to stop, whether streams are ended, whether it is ready)."""
    assert process._stop is not None
    return process._stop.result() if process._stop.done() else None, process._drain._aborted, process._drain.ready


async def test_one_signal_drains_two_end_the_streams(process: ApiProcess) -> None:
    assert state(process) == (None, False, True)
    process._signalled(LINGER_SECONDS)
    assert state(process) == (LINGER_SECONDS, False, True)
    process._signalled(LINGER_SECONDS)
    assert state(process) == (LINGER_SECONDS, True, True)


async def test_the_sigterm_that_follows_kvik_drain_leaves_the_streams_alone(process: ApiProcess) -> None:
    assert process._drain_command() == {"state": "draining", "running": 0}
    process._drain_command()
    process._signalled(LINGER_SECONDS)
    assert state(process) == (LINGER_SECONDS, False, False)


async def test_launch_giving_up_ends_the_streams_at_once(process: ApiProcess) -> None:
    process._end_now()
    assert state(process) == (0.0, True, True)
