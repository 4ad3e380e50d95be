import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.processes import Daemon, Identity, alive, end_recorded, identify, read_record, wait_until


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator[Daemon]:
    """A daemon that runs until it is ended."""
    daemon = Daemon(
        "sleeper", (sys.executable, "-c", "import time; time.sleep(600)"), tmp_path / "pid", tmp_path / "log", {}
    )
    yield daemon
    daemon.stop()


def test_a_record_of_another_boot_names_nobody():
    this = identify(1)
    assert this is not None
    assert alive(this)
    assert not alive(Identity("another-boot", this.pid, this.started))


def test_a_reused_pid_is_not_ended(tmp_path: Path):
    bystander = subprocess.Popen(["sleep", "600"])
    try:
        who = identify(bystander.pid)
        assert who is not None
        record = tmp_path / "pid"
        record.write_text(Identity(who.boot, who.pid, who.started - 1).dump())
        end_recorded(record)
        assert bystander.poll() is None
        assert not record.exists()
    finally:
        bystander.kill()
        bystander.wait()


@pytest.mark.parametrize("text", ["", "boot", "boot 12", "boot twelve 3\n", "boot 12 3 4"])
def test_a_cut_record_is_no_process(tmp_path: Path, text: str):
    record = tmp_path / "pid"
    record.write_text(text)
    assert read_record(record) is None


def test_a_record_survives_being_written_and_read(tmp_path: Path):
    record = tmp_path / "pid"
    record.write_text(Identity("boot", 12, 345).dump())
    assert read_record(record) == Identity("boot", 12, 345)


def fake_proc(folder: Path, pid: int, state: str, threads: int) -> Path:
    (folder / "sys/kernel/random").mkdir(parents=True)
    (folder / "sys/kernel/random/boot_id").write_text("boot\n")
    for thread in range(threads):
        (folder / f"{pid}/task/{pid + thread}").mkdir(parents=True)
    fields = [state, *["0"] * 18, "4711", *["0"] * 30]
    (folder / f"{pid}/stat").write_text(f"{pid} (odd) name (x) {' '.join(fields)}\n")
    return folder


def test_a_process_name_with_brackets_and_blanks_is_read(tmp_path: Path):
    assert identify(7, proc=fake_proc(tmp_path, 7, "S", threads=1)) == Identity("boot", 7, 4711)


def test_a_zombie_is_gone_only_once_its_threads_are(tmp_path: Path):
    assert identify(7, proc=fake_proc(tmp_path / "done", 7, "Z", threads=1)) is None
    assert identify(7, proc=fake_proc(tmp_path / "ending", 7, "Z", threads=3)) is not None


def test_a_daemon_is_found_again_by_its_record_and_ended(sleeper: Daemon):
    sleeper.start()
    found_again = Daemon("sleeper", sleeper.command, sleeper.record, sleeper.log, {})
    assert found_again.running()
    found_again.stop()
    assert not sleeper.running()


def test_a_frozen_daemon_can_still_be_ended(sleeper: Daemon):
    sleeper.start()
    sleeper.pause()
    sleeper.stop()
    assert not sleeper.running()


def test_waiting_names_the_daemon_that_ended_and_the_end_of_its_log(tmp_path: Path):
    broken = Daemon(
        "broken", ("sh", "-c", "echo no space left; sleep 0.2"), tmp_path / "pid", tmp_path / "log", {"PATH": "/bin"}
    )
    broken.start()
    with pytest.raises(RuntimeError, match=r"(?s)broken ended .*no space left"):
        wait_until("something", lambda: False, 30, [broken])
