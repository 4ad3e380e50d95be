"""The launcher with small stand-in processes: real forks, real signals, no model."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvik_engine.run_dir import RunDir, running, sweep
from tests.support.live_api import engine_config
from tests.support.waiting import PATIENCE, wait_until

STAND_IN = """
import pathlib, os, signal, sys, time
name, run_dir = sys.argv[1], pathlib.Path(sys.argv[-1]).parent
with (pathlib.Path(os.environ["TRACE"]) / name).open("a") as trace:
    trace.write(f"{os.getpid()}\\n")
"""
CONVERT = (
    STAND_IN
    + "time.sleep(float(os.environ.get('CONVERT_SLEEPS', '0')))\nsys.exit(int(os.environ.get('CONVERT_EXIT', '0')))"
)
CORE = (
    STAND_IN + "time.sleep(float(os.environ.get('CORE_LIVES', '600')))\nsys.exit(int(os.environ.get('CORE_EXIT', '1')))"
)
API = (
    """
import os, pathlib, signal, sys
def stop(number, frame):
    (pathlib.Path(os.environ["TRACE"]) / "signals").open("a").write(f"{number}\\n")
    sys.exit(0)
signal.signal(signal.SIGUSR1, stop)
signal.signal(signal.SIGTERM, stop)
signal.signal(signal.SIGINT, stop)
"""
    + STAND_IN  # who sees its pid may send it signals
    + """
if os.environ.get("ORPHAN"):
    if os.fork() == 0:
        if os.fork() == 0:
            time.sleep(0.3)
            folder = pathlib.Path(os.environ["TRACE"])
            (folder / "parent").write_text(f"{os.getppid()}\\n")
            (folder / "orphan").write_text(f"{os.getpid()}\\n")
            os._exit(0)
        os._exit(0)
    os.wait()
time.sleep(600)
"""
)
DRIVER = """
import ctypes, pathlib, sys
from kvik_engine import launch
from kvik_engine.config import EngineConfig
from kvik_engine.supervision import Process
folder = pathlib.Path(sys.argv[1])
SUBREAPER = 36  # orphans come to this process, as to PID 1
ctypes.CDLL(None).prctl(SUBREAPER, 1)
launch._MODULES = {Process.API: "api", Process.CORE: "core"}
spawn = launch.Launcher._spawn
launch.Launcher._spawn = lambda self, module: spawn(self, "stand_in." + module.rpartition(".")[2])
sys.exit(launch.launch(EngineConfig.read(folder / "given.json"), folder / "run"))
"""


class Engine:
    """A launcher in a process of its own, in front of stand-ins that write their pids to files."""

    def __init__(self, folder: Path, startup_timeout: float, **environment: str) -> None:
        self.folder = folder
        self.trace = folder / "trace"
        package = folder / "modules" / "stand_in"
        for path in (self.trace, package):
            path.mkdir(parents=True)
        for name, source in (("__init__", ""), ("convert", CONVERT), ("core", CORE), ("api", API)):
            (package / f"{name}.py").write_text(source.replace("sys.argv[1]", repr(name)))
        config = engine_config(folder / "run", startup_timeout=startup_timeout)
        config.write(folder / "given.json")
        (folder / "driver.py").write_text(DRIVER)
        paths = f"{folder / 'modules'}{os.pathsep}{os.pathsep.join(p for p in sys.path if p)}"
        environment = {**os.environ, "PYTHONPATH": paths, "TRACE": str(self.trace), **environment}
        self.process = subprocess.Popen(
            [sys.executable, str(folder / "driver.py"), str(folder)], env=environment, stderr=subprocess.PIPE, text=True
        )

    def pids(self, name: str) -> list[int]:
        path = self.trace / name
        return [int(line) for line in path.read_text().split()] if path.exists() else []

    def wait(self, name: str, count: int = 1) -> int:
        """The pid of the `count`th process of that name."""
        wait_until(lambda: len(self.pids(name)) >= count)
        return self.pids(name)[count - 1]

    def end(self) -> tuple[int, str]:
        """Exit code and stderr."""
        _, errors = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, errors


@pytest.fixture
def engines(tmp_path: Path) -> Iterator[list[Engine]]:
    made: list[Engine] = []
    yield made
    for engine in made:
        engine.process.kill()
        engine.process.communicate()


def start(engines: list[Engine], tmp_path: Path, startup_timeout: float = 600.0, **environment: str) -> Engine:
    engine = Engine(tmp_path / str(len(engines)), startup_timeout, **environment)
    engines.append(engine)
    return engine


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_sigterm_stops_the_api_first_and_then_the_core(engines: list[Engine], tmp_path: Path) -> None:
    engine = start(engines, tmp_path)
    core, api = engine.wait("core"), engine.wait("api")
    engine.process.send_signal(signal.SIGTERM)
    code, _ = engine.end()
    assert code == 0
    assert engine.pids("signals") == [signal.SIGTERM]
    assert not alive(core)
    assert not alive(api)
    assert list((engine.folder / "run").glob("[!.]*")) == [], "the run folder is gone"


def test_a_killed_core_is_replaced_while_the_api_stays(engines: list[Engine], tmp_path: Path) -> None:
    engine = start(engines, tmp_path)
    api = engine.wait("api")
    os.kill(engine.wait("core"), signal.SIGKILL)
    engine.wait("core", 2)
    assert engine.pids("api") == [api]
    assert alive(api)


def test_a_core_that_keeps_dying_ends_the_engine_with_a_reason(engines: list[Engine], tmp_path: Path) -> None:
    engine = start(engines, tmp_path, CORE_LIVES="0.1")
    code, errors = engine.end()
    assert code == 1
    assert len(engine.pids("core")) == 3
    assert "CoreFailed: " in errors
    assert not alive(engine.wait("api"))
    assert engine.pids("signals") == [signal.SIGUSR1], "its clients must hear why their streams end"


def test_a_core_that_cannot_start_is_not_retried(engines: list[Engine], tmp_path: Path) -> None:
    engine = start(engines, tmp_path, CORE_LIVES="0", CORE_EXIT="78")
    assert engine.end()[0] == 78
    assert len(engine.pids("core")) == 1


def test_a_killed_api_process_leaves_no_core_behind(engines: list[Engine], tmp_path: Path) -> None:
    """sglang #22779: a leftover core makes the next start look healthy, then hang."""
    engine = start(engines, tmp_path)
    core = engine.wait("core")
    os.kill(engine.wait("api"), signal.SIGKILL)
    code, errors = engine.end()
    assert code == 1
    assert "ApiFailed: the API process ended with signal 9" in errors
    assert not alive(core)


def test_a_killed_launcher_leaves_nobody_behind(engines: list[Engine], tmp_path: Path) -> None:
    engine = start(engines, tmp_path)
    core, api = engine.wait("core"), engine.wait("api")
    engine.process.kill()
    wait_until(lambda: not alive(core) and not alive(api))
    assert list(running(engine.folder / "run")) == []
    sweep(engine.folder / "run")
    assert list((engine.folder / "run").glob("[!.]*")) == []


def test_both_processes_may_die_at_once(engines: list[Engine], tmp_path: Path) -> None:
    engine = start(engines, tmp_path)
    core, api = engine.wait("core"), engine.wait("api")
    engine.process.send_signal(signal.SIGSTOP)
    for pid in (core, api):
        os.kill(pid, signal.SIGKILL)
    engine.process.send_signal(signal.SIGCONT)
    code, errors = engine.end()
    assert code == 1
    assert "Traceback" not in errors
    assert len(engine.pids("core")) == 1, "no core for an engine that ends"


@pytest.mark.parametrize(("status", "want"), [("78", 78), ("3", 78)])
def test_nothing_starts_when_the_model_cannot_be_read(
    engines: list[Engine], tmp_path: Path, status: str, want: int
) -> None:
    engine = start(engines, tmp_path, CONVERT_EXIT=status)
    code, errors = engine.end()
    assert code == want
    assert ("ModelInvalid: " in errors) == (status == "3"), "convert itself reports a 78"
    assert engine.pids("core") == engine.pids("api") == []


def test_a_core_that_is_not_warm_in_time_ends_the_engine(engines: list[Engine], tmp_path: Path) -> None:
    engine = start(engines, tmp_path, startup_timeout=4.0)  # convert has to end within it too
    code, errors = engine.end()
    assert code == 1
    assert "not ready within 4 s" in errors


def test_adopted_orphans_are_reaped(engines: list[Engine], tmp_path: Path) -> None:
    """PID 1 of a container inherits every orphan."""
    engine = start(engines, tmp_path, ORPHAN="1")
    orphan = engine.wait("orphan")
    assert engine.pids("parent") == [engine.process.pid]
    wait_until(lambda: not Path(f"/proc/{orphan}").exists())


def test_children_do_not_get_the_working_folder_on_their_path(engines: list[Engine], tmp_path: Path) -> None:
    """A model folder as the working folder must not lend its .py files."""
    engine = start(engines, tmp_path)
    command = Path(f"/proc/{engine.wait('core')}/cmdline").read_bytes().split(b"\0")
    assert b"-P" in command


def test_a_base_folder_that_others_may_write_is_not_used(tmp_path: Path) -> None:
    base = tmp_path / "base"
    base.mkdir()
    base.chmod(0o777)
    with pytest.raises(PermissionError):
        RunDir.create(base)


def test_a_convert_that_hangs_is_given_up(engines: list[Engine], tmp_path: Path) -> None:
    engine = start(engines, tmp_path, startup_timeout=0.5, CONVERT_SLEEPS="600")
    code, errors = engine.end()
    assert code == 78
    assert "did not end in time" in errors


def locked_by_nobody(folder: Path) -> Path:
    folder.mkdir()
    (folder / "lock").touch()
    return folder


def test_a_start_leaves_alone_what_it_did_not_make(tmp_path: Path) -> None:
    """As root with --run-dir /var/lib, a file called `lock` in a folder such as /var/lib/dpkg is no sign of ours."""
    names = ("dpkg", "123-abc_0123", "kvik-123", "kvik-1-abc_0123x", "kvik-x-abc_0123", "my-kvik-1-abc_0123")
    foreign = [locked_by_nobody(tmp_path / name) for name in names]
    (tmp_path / "data").mkdir()
    target = locked_by_nobody(tmp_path / "data" / "target")
    link = tmp_path / "kvik-1-linked_0"
    link.symlink_to(target)
    run_dir = RunDir.create(tmp_path)
    assert all((folder / "lock").exists() for folder in [*foreign, target, link])
    assert list(running(tmp_path)) == [run_dir.path]
    run_dir.remove()


def test_a_base_folder_that_is_a_link_is_not_used(tmp_path: Path) -> None:
    """Whoever plants /tmp/kvik-UID must not choose which folder a start sweeps."""
    victim = tmp_path / "victim"
    victim.mkdir()
    old = locked_by_nobody(victim / "kvik-123-abc_0123")
    (tmp_path / "base").symlink_to(victim)
    with pytest.raises(PermissionError, match="link"):
        RunDir.create(tmp_path / "base")
    assert old.exists()


def test_run_folders_of_running_engines_are_found_and_others_swept(tmp_path: Path) -> None:
    old = locked_by_nobody(tmp_path / "kvik-123-abc_0123")
    mine = RunDir.create(tmp_path)
    assert not old.exists()
    old = locked_by_nobody(old)
    mine.config_file.write_text(json.dumps({"port": 1}))
    assert list(running(tmp_path)) == [mine.path]
    assert mine.path.stat().st_mode & 0o777 == 0o700
    other = RunDir.create(tmp_path)
    assert not old.exists()
    assert sorted(running(tmp_path)) == sorted([mine.path, other.path])
    mine.remove()
    other.remove()
    assert list(tmp_path.glob("[!.]*")) == []
