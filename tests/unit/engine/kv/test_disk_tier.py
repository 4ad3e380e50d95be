"""The disk cache on a real file system: bounded, checked, atomic, and never in the way."""

import errno
import logging
import os
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest

from kvik_engine.kv.block_files import BlockFiles, bytes_on_disk
from kvik_engine.kv.disk_tier import MAX_WRITES, PAUSE_SECONDS, DiskTier, Done
from kvik_engine.kv.host_pool import ContentKey, Slot

SIZE = 64
FILE = bytes_on_disk(SIZE)


def key(number: int, group: int = 0) -> ContentKey:
    return group, sha256(bytes([number])).digest()


class Rig:
    """A disk tier over 40 slots whose worker runs when the test says so."""

    def __init__(self, directory: Path, *, blocks: int = 100, fingerprint: str = "a") -> None:
        self.memory = bytearray(40 * SIZE)
        self.jobs: list[Callable[[], None]] = []
        self.now = 0.0
        self.files = BlockFiles(directory, fingerprint)
        self.disk = DiskTier(
            self.files,
            memoryview(self.memory),
            block_bytes=SIZE,
            max_bytes=blocks * FILE,
            run=self.jobs.append,
            clock=lambda: self.now,
        )
        self.disk.open()

    def end(self) -> None:
        """As the end of the engine's process does."""
        assert self.files._lock is not None
        os.close(self.files._lock)

    def work(self) -> list[Done]:
        while self.jobs:
            self.jobs.pop(0)()
        return self.disk.done()

    def write(self, number: int, slot: int = 0) -> bool:
        self.memory[slot * SIZE : (slot + 1) * SIZE] = bytes([number]) * SIZE
        accepted = self.disk.write(key(number), Slot(slot))
        self.work()
        return accepted

    def read(self, number: int, slot: int = 1) -> Done:
        self.disk.read(key(number), Slot(slot))
        (done,) = self.work()
        return done

    def content(self, slot: int) -> bytes:
        return bytes(self.memory[slot * SIZE : (slot + 1) * SIZE])


def earlier_run(directory: Path, *numbers: int, fingerprint: str = "a") -> None:
    """An engine that wrote these blocks and ended."""
    rig = Rig(directory, fingerprint=fingerprint)
    for number in numbers:
        rig.write(number)
    rig.end()


def files(directory: Path) -> list[Path]:
    return sorted(path for path in directory.rglob("*") if path.is_file())


def test_a_block_comes_back_as_it_was_written(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    assert rig.write(7)
    assert key(7) in rig.disk
    assert rig.read(7).error is None
    assert rig.content(1) == bytes([7]) * SIZE
    assert (rig.disk.use.written, rig.disk.use.read) == (1, 1)


def test_a_call_returns_before_the_disk_has_done_anything(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    assert rig.disk.write(key(1), Slot(0))
    assert (rig.disk.done(), files(tmp_path)) == ([], [])
    assert key(1) not in rig.disk
    (done,) = rig.work()
    assert (done.wrote, done.error, done.slot.id) == (True, None, 0)
    assert key(1) in rig.disk


def test_content_that_is_forgotten_and_written_again_while_it_waits_is_kept_by_the_second_write(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.memory[2 * SIZE : 3 * SIZE] = bytes([7]) * SIZE
    assert rig.disk.write(key(7), Slot(0))
    rig.disk.forget(key(7))
    assert rig.disk.write(key(7), Slot(2))
    rig.jobs.pop(0)()
    rig.disk.done()
    assert key(7) not in rig.disk, "the first write was forgotten"
    assert not rig.disk.write(key(7), Slot(3)), "the second one is under way"
    rig.work()
    assert key(7) in rig.disk
    assert rig.read(7).error is None
    assert rig.content(1) == bytes([7]) * SIZE


def test_the_next_start_finds_what_was_written(tmp_path: Path) -> None:
    earlier_run(tmp_path, 7)
    rig = Rig(tmp_path)
    assert rig.disk.use.blocks == 1
    assert rig.read(7).error is None
    assert rig.content(1) == bytes([7]) * SIZE


def test_another_model_never_reads_it_and_gets_the_room(tmp_path: Path) -> None:
    earlier_run(tmp_path, 7)
    rig = Rig(tmp_path, fingerprint="b")
    assert key(7) not in rig.disk
    assert files(tmp_path) == []


def test_two_engines_with_one_directory_leave_each_other_their_blocks(tmp_path: Path) -> None:
    """Each start removed the other's folder: then every read of the other failed, and its size was exceeded."""
    first, second = Rig(tmp_path), Rig(tmp_path)
    first.write(1)
    second.write(2)
    other_model = Rig(tmp_path, fingerprint="b")
    assert [(key(1) in rig.disk, key(2) in rig.disk) for rig in (first, second)] == [(True, False), (False, True)]
    assert other_model.disk.use.blocks == 0
    assert first.read(1).error is None
    assert second.read(2).error is None


def within(sub_folder: int, number: int) -> ContentKey:
    """Keys whose files lie in one sub-folder."""
    return 0, bytes([sub_folder, *[number] * 31])


def long_ago(directory: Path, seconds: float) -> None:
    for path in [directory, *directory.rglob("*")]:
        os.utime(path, (1e9 - seconds, 1e9 - seconds))


def folder_of(rig: Rig) -> Path:
    assert rig.files._folder is not None
    return rig.files._folder


def test_of_the_folders_of_engines_that_ended_the_last_written_one_is_kept(tmp_path: Path) -> None:
    """A folder's own time stands still once all its sub-folders are there: a busy engine's folder looked older than
    that of one that ran later, for a moment, and was removed."""
    busy, brief = Rig(tmp_path), Rig(tmp_path)
    for rig, number in ((busy, 1), (brief, 2)):
        rig.disk.write(within(7, number), Slot(0))
        rig.work()
    brief.end()
    long_ago(folder_of(busy), 20)
    long_ago(folder_of(brief), 10)
    busy.disk.write(within(7, 3), Slot(0))
    busy.work()
    busy.end()
    next_start = Rig(tmp_path)
    assert [number for number in (1, 2, 3) if within(7, number) in next_start.disk] == [1, 3]
    assert len(files(tmp_path)) == 2


def test_a_folder_that_was_opened_last_and_never_written_to_gives_way_to_one_with_blocks(tmp_path: Path) -> None:
    first, second = Rig(tmp_path), Rig(tmp_path)
    first.write(1)
    long_ago(folder_of(first), 10)
    first.end()
    second.end()
    assert key(1) in Rig(tmp_path).disk


def test_it_stays_within_its_size_and_drops_the_longest_unused(tmp_path: Path) -> None:
    rig = Rig(tmp_path, blocks=3)
    for number in (1, 2, 3):
        rig.write(number)
    rig.read(1)
    rig.write(4)
    assert [key(number) in rig.disk for number in (1, 2, 3, 4)] == [True, False, True, True]
    assert sum(512 * path.stat().st_blocks for path in files(tmp_path)) <= 3 * FILE


def test_a_smaller_size_at_the_next_start_removes_what_is_too_much(tmp_path: Path) -> None:
    earlier_run(tmp_path, *range(5))
    assert Rig(tmp_path, blocks=2).disk.use.blocks == len(files(tmp_path)) == 2


def test_what_is_there_is_not_written_again(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    assert rig.write(1)
    assert not rig.write(1)


def test_a_disk_slower_than_the_blocks_come_keeps_fewer_of_them(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    accepted = [rig.disk.write(key(number), Slot(number)) for number in range(MAX_WRITES + 5)]
    assert accepted.count(True) == MAX_WRITES
    assert len(rig.work()) == MAX_WRITES


@pytest.mark.parametrize("damage", ["flipped bit", "cut off", "longer", "other magic", "empty", "gone"])
def test_a_corrupt_file_is_a_failed_read_and_is_removed(
    damage: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rig = Rig(tmp_path)
    rig.write(7)
    (path,) = files(tmp_path)
    content = bytearray(path.read_bytes())
    match damage:
        case "flipped bit":
            content[-3] ^= 4
        case "cut off":
            del content[-1:]
        case "longer":
            content += b"x"
        case "other magic":
            content[0] ^= 1
        case "empty":
            content.clear()
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        assert rig.read(7).error is not None
    assert "cannot be read" in caplog.text
    assert rig.disk.use.failed_reads == 1
    assert key(7) not in rig.disk
    rig.work()
    assert files(tmp_path) == []


def test_a_file_of_another_size_is_not_taken_at_the_start(tmp_path: Path) -> None:
    earlier_run(tmp_path, 7)
    (path,) = files(tmp_path)
    path.write_bytes(path.read_bytes()[:-1])
    rig = Rig(tmp_path)
    assert (rig.disk.use.blocks, files(tmp_path)) == (0, [])


def test_a_file_half_written_at_a_crash_is_never_seen(tmp_path: Path) -> None:
    earlier_run(tmp_path, 7)
    (path,) = files(tmp_path)
    path.rename(path.with_name(path.name + ".partial"))
    rig = Rig(tmp_path)
    assert (rig.disk.use.blocks, files(tmp_path)) == (0, [])


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EIO])
def test_a_disk_that_cannot_be_written_is_left_alone_for_a_while(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rig = Rig(tmp_path)
    rig.write(1)

    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as broken, caplog.at_level(logging.WARNING):
        broken.setattr(os, "replace", fail)
        assert rig.write(2)
    assert "cannot be written" in caplog.text
    assert (rig.disk.use.failed_writes, key(2) in rig.disk, len(files(tmp_path))) == (1, False, 1)
    assert not rig.write(3)
    assert rig.read(1).error is None
    rig.now += PAUSE_SECONDS
    assert rig.write(3)


def test_a_folder_that_cannot_be_made_is_no_reason_not_to_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("not a folder")
    with caplog.at_level(logging.WARNING):
        rig = Rig(tmp_path / "file")
    assert "cannot be written" in caplog.text
    assert not rig.write(1)
    assert rig.disk.use.failed_writes == 1


def test_a_disk_that_comes_late_is_opened_by_the_first_write_after_the_pause(tmp_path: Path) -> None:
    """Nothing opened it a second time: every write failed for ever, with a warning each."""
    place = tmp_path / "disk"
    earlier_run(place, *range(4))
    place.rename(tmp_path / "away")
    place.write_text("not mounted")
    rig = Rig(place, blocks=3)
    place.unlink()
    (tmp_path / "away").rename(place)
    assert not rig.write(8)
    assert rig.disk.use.blocks == 0, "the pause is not over"
    rig.now += PAUSE_SECONDS
    assert not rig.disk.write(key(8), Slot(0)), "nobody waits for the folder"
    assert not rig.disk.write(key(9), Slot(0))
    assert len(rig.jobs) == 1
    assert rig.work() == []
    assert [number for number in range(4) if key(number) in rig.disk] == [1, 2, 3]
    assert rig.write(8)
    assert (rig.disk.use.failed_writes, len(files(place))) == (1, 3)


def test_an_opening_that_failed_half_way_keeps_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its second try would take its own folder for another engine's."""
    earlier_run(tmp_path, 7)
    (path,) = files(tmp_path)
    path.with_name(path.name + ".partial").write_text("half")

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as broken:
        broken.setattr(Path, "unlink", fail)
        rig = Rig(tmp_path)
    assert rig.disk.use.blocks == 0
    rig.now += PAUSE_SECONDS
    rig.write(8)
    assert key(7) in rig.disk
    assert files(tmp_path) == [path]


def test_what_is_forgotten_while_it_is_written_is_not_found_afterwards(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.disk.write(key(1), Slot(0))
    rig.disk.forget(key(1))
    rig.work()
    rig.work()
    assert key(1) not in rig.disk
    assert files(tmp_path) == []


def test_a_bug_in_a_job_gives_the_slot_back_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(tmp_path)
    rig.write(1)

    def fail(*_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(BlockFiles, "read", fail)
    assert rig.read(1).error == "RuntimeError('a bug')"
