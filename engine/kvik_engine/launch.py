"""PID 1 of an engine: start convert, then core and API; reap, forward signals, restart a dead core, drain, exit.

Standard library only, single-threaded. Children are started by fork and exec from the main thread and die with it
(PR_SET_PDEATHSIG is bound to the thread that forked). What to do when one ends is decided in `supervision`.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

from kvik_engine.config import EngineConfig
from kvik_engine.errors import StartError, StartReason
from kvik_engine.exits import EXIT_START_ERROR, report_end, report_start_error
from kvik_engine.ipc.heartbeat import HEARTBEAT_FILE, HeartbeatReader, HeartbeatWriter, Phase
from kvik_engine.run_dir import RunDir
from kvik_engine.supervision import Carry, Finish, Process, RestartCore, Supervision, Verdict, describe

log = logging.getLogger(__name__)

STOP_SECONDS = 7.0
"""From asking the children to stop to killing them. A pod's grace period leaves 10 s behind the drain's timeout, of
which the API's farewell to the streams it cuts may take 2."""
_POLL_SECONDS = 1.0
_PR_SET_PDEATHSIG = 1
_WATCHED = {signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP}
_STOP_SIGNALS = {signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP}
_MODULES = {Process.API: "kvik_engine.api.main", Process.CORE: "kvik_engine.core.main"}
_CHILD_ENVIRONMENT = {"OMP_WAIT_POLICY": "passive", "TOKENIZERS_PARALLELISM": "false"}


def launch(config: EngineConfig, run_base: Path) -> int:
    """Run an engine to its end; the exit code. StartError when there is no place for its sockets."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
    run_dir = make_run_dir(run_base)
    try:
        return Launcher(replace(config, run_dir=str(run_dir.path)), run_dir.config_file).run()
    except StartError as error:
        report_start_error(error)
        return EXIT_START_ERROR
    finally:
        run_dir.remove()


def make_run_dir(run_base: Path) -> RunDir:
    """A fresh folder for one start. StartError (ConfigInvalid) when there can be none."""
    try:
        return RunDir.create(run_base)
    except OSError as error:
        raise StartError(
            StartReason.CONFIG_INVALID, f"--run-dir {run_base} cannot be used: {error.strerror}"
        ) from error


class Launcher:
    """The supervisor of one engine."""

    def __init__(self, config: EngineConfig, config_file: Path) -> None:
        self._config = config
        self._config_file = config_file
        self._prctl = ctypes.CDLL(None, use_errno=True).prctl
        self._supervision = Supervision()
        self._children: dict[int, Process] = {}
        self._core_started_at = 0.0
        self._heartbeat = HeartbeatReader(Path(config.run_dir) / HEARTBEAT_FILE)

    def run(self) -> int:
        """Convert, start both processes, supervise until one of them decides the end."""
        self._config.write(self._config_file)
        if (code := self._convert()) is not None:
            return code
        self._start(Process.CORE)
        self._start(Process.API)
        while True:
            finish = self._wait()
            if finish is not None:
                self._stop_children()
                if finish.line is not None:
                    report_end(finish.line)
                return finish.code

    def _convert(self) -> int | None:
        """Run convert to its end; an exit code when the engine cannot go on."""
        child = self._spawn("kvik_engine.convert")
        end = time.monotonic() + self._config.startup_timeout
        while True:
            number = self._next_signal(_POLL_SECONDS)
            if number in _STOP_SIGNALS or time.monotonic() > end:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                if number in _STOP_SIGNALS:
                    return 0
                raise StartError(StartReason.MODEL_INVALID, "reading the model's files did not end in time")
            for pid, status in self._reap():
                if pid == child and status == EXIT_START_ERROR:
                    return EXIT_START_ERROR
                if pid == child and status != 0:
                    raise StartError(
                        StartReason.MODEL_INVALID, f"reading the model's files failed with {describe(status)}"
                    )
                if pid == child:
                    return None

    def _start(self, process: Process) -> None:
        if process is Process.CORE:
            # The page of a dead core would look stalled until the new one has loaded its libraries.
            HeartbeatWriter(Path(self._config.run_dir) / HEARTBEAT_FILE).beat(Phase.STARTING)
            self._core_started_at = time.monotonic()
        pid = self._spawn(_MODULES[process])
        self._children[pid] = process
        log.info("started", extra={"child": process.value, "pid": pid})

    def _wait(self) -> Finish | None:
        """Wait for a signal or a second; a Finish when the engine must end."""
        number = self._next_signal(_POLL_SECONDS)
        if number in _STOP_SIGNALS:
            self._forward(signal.SIGINT if number == signal.SIGINT else signal.SIGTERM)
        verdicts = [self._judge(pid, status) for pid, status in self._reap()]
        for verdict in verdicts:
            if isinstance(verdict, Finish):
                return verdict
        if any(isinstance(verdict, RestartCore) for verdict in verdicts):
            self._start(Process.CORE)
        return self._check_startup()

    def _judge(self, pid: int, status: int) -> Verdict:
        process = self._children.pop(pid, None)
        if process is None:
            return Carry()  # an adopted orphan
        log.info("ended", extra={"child": process.value, "pid": pid, "how": describe(status)})
        return self._supervision.ended(process, status, time.monotonic())

    def _check_startup(self) -> Finish | None:
        beat = self._heartbeat.read()
        late = time.monotonic() - self._core_started_at > self._config.startup_timeout
        if late and beat is not None and beat.phase is Phase.STARTING:
            return Finish(1, f"CoreFailed: the core was not ready within {self._config.startup_timeout:g} s")
        return None

    def _forward(self, number: signal.Signals) -> None:
        """The API process drains and then ends; its end ends the engine."""
        self._supervision.stopping = True
        for pid, process in self._children.items():
            if process is Process.API:
                os.kill(pid, number)

    def _stop_children(self) -> None:
        """Ask, wait, kill. The API tells its clients why their streams end."""
        self._supervision.stopping = True
        for pid, process in self._children.items():
            os.kill(pid, signal.SIGTERM if process is Process.CORE else signal.SIGUSR1)
        end = time.monotonic() + STOP_SECONDS
        while self._children and time.monotonic() < end:
            self._next_signal(0.1)
            for pid, _ in self._reap():
                self._children.pop(pid, None)
        for pid in self._children:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        self._children.clear()

    def _next_signal(self, timeout: float) -> signal.Signals | None:
        found = signal.sigtimedwait(_WATCHED, timeout)
        return None if found is None else signal.Signals(found.si_signo)

    def _reap(self) -> list[tuple[int, int]]:
        """Every child that ended, adopted orphans included: (pid, exit code or minus the signal)."""
        ended: list[tuple[int, int]] = []
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return ended
            if pid == 0:
                return ended
            ended.append((pid, os.waitstatus_to_exitcode(status)))

    def _spawn(self, module: str) -> int:
        """Fork and exec `python -P -m module CONFIG`; -P keeps the working folder off the module path."""
        parent = os.getpid()
        arguments = [sys.executable, "-P", "-m", module, str(self._config_file)]
        environment = {**os.environ, **_CHILD_ENVIRONMENT}
        pid = os.fork()
        if pid:
            return pid
        try:
            os.setsid()
            self._prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(1)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _WATCHED)
            os.execve(sys.executable, arguments, environment)
        finally:
            os._exit(127)
