from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvik_engine.core import main as core_main
from kvik_engine.core.main import StopFlag, main, run, stall_seconds
from kvik_engine.errors import StartError, StartReason
from kvik_engine.exits import EXIT_START_ERROR
from kvik_engine.ipc.core_channel import Gone
from kvik_engine.ipc.heartbeat import HeartbeatWriter, Phase
from kvik_engine.ipc.messages import ToCore
from kvik_engine.kv.check import BooksDoNotBalance
from tests.support.engine_harness import Harness, MemoryChannel
from tests.support.live_api import engine_config


@pytest.fixture(autouse=True)
def _own_signals_and_logging() -> Iterator[None]:
    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    for number, handler in kept.items():
        signal.signal(number, handler)


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    path = tmp_path / "config.json"
    engine_config(tmp_path).write(path)
    return path


@pytest.mark.parametrize(
    ("failure", "want"),
    [
        pytest.param(StartError(StartReason.MODEL_INVALID, "no such tensor"), EXIT_START_ERROR, id="start-error"),
        pytest.param(RuntimeError("a kernel failed"), core_main.EXIT_STEP_FAILED, id="bug"),
        pytest.param(None, 0, id="told-to-stop"),
    ],
)
def test_the_exit_code_says_whether_a_restart_can_help(
    failure: Exception | None, want: int, config_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def serve(*_: object) -> None:
        if failure is not None:
            raise failure

    monkeypatch.setattr(core_main, "serve", serve)
    assert main([str(config_file)]) == want


def test_a_slow_model_is_not_taken_for_a_hung_one() -> None:
    assert stall_seconds(0.5) == 10.0
    assert stall_seconds(20.0) == 40.0


def test_faults_are_checked_before_the_load_during_which_sigterm_ends_the_process(
    config_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A taken port ends the API process early: then nobody waits for a load that takes minutes."""
    seen: list[object] = []

    def load_runner(*_: object) -> None:
        seen.append(signal.getsignal(signal.SIGTERM))
        raise StartError(StartReason.MODEL_INVALID, "enough")

    monkeypatch.setattr("kvik_engine.runner.load.load_runner", load_runner)
    monkeypatch.setenv("KVIK_FAULTS", "melt@3")
    assert main([str(config_file)]) == EXIT_START_ERROR
    assert seen == []
    monkeypatch.setenv("KVIK_FAULTS", "raise@3")
    assert main([str(config_file)]) == EXIT_START_ERROR
    assert seen == [signal.SIG_DFL]


def test_sigterm_is_seen_between_steps() -> None:
    stop = StopFlag()
    os.kill(os.getpid(), signal.SIGTERM)
    assert stop.set


class ScriptedChannel(MemoryChannel):
    """Stops the loop at the `polls`th poll, and notes how long each one would have waited."""

    def __init__(self, stop: StopFlag, polls: int) -> None:
        super().__init__()
        self.stop = stop
        self.polls = polls
        self.waits: list[float] = []

    def poll(self, timeout: float) -> list[ToCore | Gone]:
        self.waits.append(timeout)
        if len(self.waits) == self.polls:
            self.stop.set = True
        return super().poll(timeout)


class NotedBeats(HeartbeatWriter):
    """Keeps what the loop showed: phase, finished steps, unfinished requests."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.beats: list[tuple[Phase, int, int]] = []

    def beat(self, phase: Phase, *, step: int = 0, unfinished: int = 0) -> None:
        self.beats.append((phase, step, unfinished))
        super().beat(phase, step=step, unfinished=unfinished)


def scripted(polls: int) -> tuple[Harness, StopFlag, ScriptedChannel]:
    harness, stop = Harness(), StopFlag()
    channel = ScriptedChannel(stop, polls)
    harness.core._channel = harness.channel = channel
    return harness, stop, channel


def test_the_loop_waits_on_the_socket_only_when_it_is_idle(tmp_path: Path) -> None:
    harness, stop, channel = scripted(polls=6)
    harness.submit(1, [1, 2, 3], max_tokens=3, stop_token_ids=())
    run(harness.core, HeartbeatWriter(tmp_path / "beat"), stop)
    assert channel.waits == [1.0, 0.0, 0.0, 1.0, 1.0, 1.0]


def test_every_step_and_every_idle_second_beats(tmp_path: Path) -> None:
    """vllm #36960, #45414: a hung core with work, and nobody noticed."""
    harness, stop, _ = scripted(polls=2)
    harness.submit(1, [1, 2, 3], max_tokens=30, stop_token_ids=())
    heartbeat = NotedBeats(tmp_path / "beat")
    run(harness.core, heartbeat, stop)
    assert heartbeat.beats == [(Phase.READY, 1, 1), (Phase.READY, 2, 1)]


def test_an_idle_loop_finds_a_lost_block(tmp_path: Path) -> None:
    harness, stop, _ = scripted(polls=9)
    harness.submit(1, [1, 2, 3], max_tokens=1)
    harness.kv.pool.take(0)
    with pytest.raises(BooksDoNotBalance):
        run(harness.core, HeartbeatWriter(tmp_path / "beat"), stop)
