"""Starts a program in the background and ends it again, and never a process that is not its own.

A pid alone proves nothing: it is reused. A record therefore holds the boot, the pid and the kernel's start time of
the process, which together name one process for ever.
"""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Identity:
    """One process of one boot. `started` is in clock ticks since that boot."""

    boot: str
    pid: int
    started: int

    def dump(self) -> str:
        return f"{self.boot} {self.pid} {self.started}\n"

    @staticmethod
    def parse(text: str) -> "Identity | None":
        """None for anything but a whole record: a crash can leave an empty or cut file."""
        match text.split():
            case [boot, pid, started] if pid.isdigit() and started.isdigit():
                return Identity(boot, int(pid), int(started))
        return None


def identify(pid: int, proc: Path = Path("/proc")) -> Identity | None:
    """Who has this pid now; None when nobody has, or only a zombie.

    A zombie whose other threads are still ending is not gone: it holds its listening ports until they have.
    """
    try:
        stat = (proc / str(pid) / "stat").read_text()
        threads = len(list((proc / str(pid) / "task").iterdir()))
        boot = (proc / "sys/kernel/random/boot_id").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat[stat.rindex(")") + 2 :].split()  # the name before it may hold blanks and brackets
    state, started = fields[0], int(fields[19])
    return None if state == "Z" and threads <= 1 else Identity(boot, pid, started)


def alive(process: Identity, proc: Path = Path("/proc")) -> bool:
    return identify(process.pid, proc) == process


def end(process: Identity, patience: float = 10.0) -> None:
    """SIGTERM, then after `patience` seconds SIGKILL. Returns once the process is gone."""
    for sig, seconds in ((signal.SIGTERM, patience), (signal.SIGKILL, 10.0)):
        if not alive(process):
            return
        with suppress(ProcessLookupError):
            os.kill(process.pid, sig)
            os.kill(process.pid, signal.SIGCONT)  # a stopped process would keep the signal for later
        deadline = time.monotonic() + seconds
        while alive(process) and time.monotonic() < deadline:
            _reap(process.pid)
            time.sleep(0.02)
    if alive(process):
        raise TimeoutError(f"process {process.pid} survived SIGKILL")


def _reap(pid: int) -> None:
    """Collects the process if it is our own child, so that it is not a zombie for the rest of our life."""
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return


@dataclass(frozen=True, slots=True)
class Daemon:
    """A background program: its command line, its log and the record that finds it again in a later run.

    With `dies_with_parent` the kernel ends it when the thread that started it ends, so that a killed test run leaves
    nothing behind: start it from the main thread then.
    """

    name: str
    command: tuple[str, ...]
    record: Path
    log: Path
    environment: Mapping[str, str]
    dies_with_parent: bool = False

    def start(self) -> None:
        if self.running():
            return
        prefix: Sequence[str] = ("setpriv", "--pdeathsig", "KILL") if self.dies_with_parent else ()
        with self.log.open("ab") as log:
            child = subprocess.Popen(
                [*prefix, *self.command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=dict(self.environment),
                start_new_session=True,
            )
        identity = identify(child.pid)
        child.returncode = 0  # followed and reaped by pid from here on; else Popen warns that it is still running
        if identity is None:
            raise RuntimeError(f"{self.name} ended at once: {self.log_tail()}")
        self.record.write_text(identity.dump())

    def identity(self) -> Identity | None:
        """The running process; None when it never started or has ended."""
        recorded = read_record(self.record)
        return recorded if recorded is not None and alive(recorded) else None

    def running(self) -> bool:
        return self.identity() is not None

    def stop(self, patience: float = 10.0) -> None:
        end_recorded(self.record, patience)

    def kill(self) -> None:
        """Ends it as a crash would: without a chance to tidy up."""
        if (running := self.identity()) is not None:
            os.kill(running.pid, signal.SIGKILL)
        self.stop(patience=0.0)

    def pause(self) -> None:
        """Freezes it: connections stay open and nothing answers."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, sig: signal.Signals) -> None:
        running = self.identity()
        if running is None:
            raise ProcessLookupError(f"{self.name} is not running")
        os.kill(running.pid, sig)

    def log_tail(self, lines: int = 15) -> str:
        if not self.log.exists():
            return "(no log)"
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


def read_record(record: Path) -> Identity | None:
    try:
        return Identity.parse(record.read_text())
    except FileNotFoundError:
        return None


def end_recorded(record: Path, patience: float = 10.0) -> None:
    """Ends the process of a record, if it is still that process, and removes the record."""
    recorded = read_record(record)
    if recorded is not None:
        end(recorded, patience)
    record.unlink(missing_ok=True)


def every_process(proc: Path = Path("/proc")) -> Iterator[tuple[int, list[str]]]:
    """(pid, command line) of each process; kernel threads have an empty command line."""
    for entry in proc.iterdir():
        if entry.name.isdigit():
            try:
                yield int(entry.name), (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
            except (FileNotFoundError, ProcessLookupError):
                continue


PATIENCE = 180.0
"""Seconds for a program to begin its work: most machines need ten, a crowded one takes its time."""


def wait_until(what: str, condition: Callable[[], bool], seconds: float, daemons: Sequence[Daemon] = ()) -> None:
    """Polls `condition` until it holds.

    Raises:
        RuntimeError: a daemon in `daemons` ended meanwhile (with the end of its log).
        TimeoutError: not within `seconds`.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        for daemon in daemons:
            if not daemon.running():
                raise RuntimeError(f"{daemon.name} ended while waiting for {what}:\n{daemon.log_tail()}")
        if time.monotonic() > deadline:
            tails = "\n".join(f"--- {daemon.name}\n{daemon.log_tail()}" for daemon in daemons)
            raise TimeoutError(f"not within {seconds:.0f} s: {what}\n{tails}")
        time.sleep(0.1)
